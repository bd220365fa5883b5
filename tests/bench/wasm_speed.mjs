// Times a bundle of WebAssembly in node, through the JavaScript that it ships:
//   node wasm_speed.mjs BUNDLE VARIANT PROMPT_TOKENS TOKENS
// One JSON line on stdout: {prefill, decode}, in tokens per second.

import { readFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { pathToFileURL } from "node:url";

const [folder, variant, prompt, count] = process.argv.slice(2);
const bundle = resolve(folder);
const { Engine } = await import(pathToFileURL(join(bundle, "platform/web/mlcb.js")).href);
const { variants, model } = JSON.parse(readFileSync(join(bundle, "bundle.json"), "utf8"));
const { activations } = variants.find(({ name }) => name === variant);
const engine = await Engine.load(bundle, { variant, activations, worker: false, maxBatchSize: 1 });

async function run(seed) {
  // Other tokens each time: nothing comes out of the prefix cache.
  const ids = Array.from({ length: Number(prompt) }, (_, i) => (seed * 7919 + i * 37) % model.vocab_size);
  const begin = performance.now();
  let first = null;
  let last = begin;
  const stream = await engine.completions.create({
    prompt: ids, temperature: 0, ignore_eos: true, max_tokens: Number(count), stream: true,
    stream_options: { include_usage: true },
  });
  let tokens = 0;
  for await (const { usage, choices } of stream) {
    if (choices.length > 0) {
      last = performance.now();
      first ??= last;
    }
    tokens = usage?.completion_tokens ?? tokens;
  }
  return { prefill: ids.length / (first - begin) * 1e3, decode: (tokens - 1) / (last - first) * 1e3 };
}

await run(1); // what V8 has not optimized yet
console.log(JSON.stringify(await run(2)));
await engine.unload();
