// Uses of mlcb.d.ts that must pass, or not: `make test-web` runs the TypeScript compiler over it.

import {
  Engine,
  MlcbError,
  hostCapabilities,
  type ChatCompletionChunk,
} from "../../mlcbuild/runtime_stub/platform/web/mlcb.js";
const engine: Engine = await Engine.load("https://example.org/x/", {
  worker: true,
  onProgress: (p) => console.log(p.phase, p.warning),
  cache: "auto",
});
const a = await engine.chat.completions.create({
  messages: [{ role: "user", content: "a" }],
  temperature: 0,
});
console.log(a.choices[0].message.content?.length, a.usage?.total_tokens);
const s = await engine.chat.completions.create({
  messages: [{ role: "user", content: "a" }],
  stream: true,
});
for await (const c of s) {
  const d: ChatCompletionChunk = c;
  console.log(d.choices[0]?.delta.content);
}
s.cancel();
const c = await engine.completions.create(
  { prompt: [1, 2], seed: 5n },
  { signal: AbortSignal.timeout(5) },
);
console.log(c.choices[0].text);
// The answer goes back in as it came.
await engine.chat.completions.create({
  messages: [{ role: "user", content: "a" }, a.choices[0].message],
});
try {
  await Engine.clearCache();
} catch (e) {
  if (e instanceof MlcbError) console.log(e.status, e.code, e.hint);
}
// @ts-expect-error
new Engine();
// @ts-expect-error
engine.chat.completions.create({ messages: [], tempratur: 1 });
console.log(hostCapabilities().has("simd128"));
