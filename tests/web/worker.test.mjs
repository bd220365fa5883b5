// The engine on a thread of its own: messages, cancelling, errors, crashes.

import assert from "node:assert/strict";
import { afterEach, beforeEach, test } from "node:test";
import { Worker } from "node:worker_threads";

import { Engine, MlcbError } from "../../mlcbuild/runtime_stub/platform/web/mlcb.js";
import { fakeWorld } from "./fake_bundle.mjs";
import { TRAPS } from "./fake_wasm.mjs";

const worker = () => new Worker(new URL("./fake_worker.mjs", import.meta.url));
const open = (options = {}) => Engine.load("fake", { worker, ...options });

let engine;
beforeEach(async () => {
  engine = await open();
});
afterEach(() => engine.unload());

const text = (more = {}) => engine.completions.create({ prompt: "abc", ...more });
const endless = { max_tokens: 90, ignore_eos: true };

test("answers, streams, text, figures", async () => {
  const whole = (await text({ prompt: [97, 98, 99] })).choices[0].text;
  assert.equal(whole, "abc");
  const chunks = [];
  for await (const chunk of await text({ prompt: [97, 98, 99], stream: true, seed: 2n ** 60n })) {
    chunks.push(chunk.choices[0].text);
  }
  assert.equal(chunks.join(""), whole);
  assert.deepEqual(await engine.tokenize("a"), [97]);
  assert.equal(await engine.detokenize([97], { special: true }), "a");
  const logits = await engine.logits([5]);
  assert.ok(logits instanceof Float32Array);
  assert.equal(logits[1], Math.fround(5.001));
  assert.equal((await engine.metrics()).pad.length, 1 << 15);
  assert.equal(engine.info.variant, "relaxed");
  assert.equal(engine.manifest.name, "fake");
  assert.deepEqual(engine.warnings, []);
});

test("progress, and options that reach the runtime", async () => {
  const told = [];
  const other = await open({
    activations: "float",
    onProgress: (progress) => told.push(progress.phase),
  });
  assert.equal(other.info.variant, "simd128-float");
  assert.deepEqual([...new Set(told)], ["manifest", "download", "compile", "open"]);
  await other.unload();
  const onProgress = () => {
    throw new Error("of the caller");
  };
  await assert.rejects(open({ onProgress }), /of the caller/);
  await assert.rejects(
    Engine.loadWith(fakeWorld(), "fake", { worker: false, onProgress }),
    /of the caller/,
  );
});

test("several at once", async () => {
  const answers = await Promise.all(
    ["a", "bb", "ccc"].map((prompt) =>
      engine.completions.create({ prompt: [...prompt].map((c) => c.charCodeAt(0)) }),
    ),
  );
  assert.deepEqual(
    answers.map((answer) => answer.choices[0].text),
    ["a", "bb", "ccc"],
  );
});

test("errors are what they are without a worker", async () => {
  const checks = [
    [() => text({ temperature: 3 }), { code: "invalid_value", param: "temperature", status: 400 }],
    [() => text({ prompt: "x".repeat(101) }), { code: "context_length_exceeded", param: "prompt" }],
    [() => text({ prompt: "x".repeat(101), stream: true }), { code: "context_length_exceeded" }],
    [() => text({ prompt: [1] }), { code: "internal_error", why: "it was told to" }],
    [() => engine.renderChat([{ role: "user", content() {} }]), { code: "invalid_value" }],
    [() => open({ variant: "avx2" }), { code: "invalid_option", param: "variant" }],
    [() => open({ kvTokens: 7 }), { code: "out_of_memory", status: 503 }],
    [
      () => open({ maxBatchSize: 9 }),
      {
        code: "invalid_option",
        message: "maxBatchSize is too large; lower maxBatchSize",
      },
    ],
    [
      () => open({ maxBatchSizes: 7 }),
      { code: "invalid_option", hint: "did you mean maxBatchSize?" },
    ],
  ];
  for (const [ask, want] of checks) {
    await assert.rejects(ask(), (error) => {
      assert.ok(error instanceof MlcbError, String(error.stack));
      for (const [key, value] of Object.entries(want)) assert.equal(error[key], value);
      return true;
    });
  }
});

test("cancelling: a signal, and leaving a loop", async () => {
  const controller = new AbortController();
  const whole = text({ ...endless, n: 4 });
  const refused = assert.rejects(
    engine.completions.create({ prompt: "a", ...endless }, { signal: controller.signal }),
    { name: "AbortError" },
  );
  controller.abort();
  await refused;
  for await (const chunk of await text({ ...endless, stream: true })) {
    assert.ok(chunk);
    break;
  }
  assert.equal((await whole).choices.length, 4);
  assert.deepEqual(
    await engine.tokenize("still"),
    [..."still"].map((c) => c.charCodeAt(0)),
  );
  await assert.rejects(open({ signal: AbortSignal.abort() }), { name: "AbortError" });
});

test("a trap of the module ends what runs and what comes", async () => {
  const running = text({ ...endless, prompt: [TRAPS] });
  await assert.rejects(running, { code: "runtime_crashed", status: 500 });
  await assert.rejects(engine.tokenize("a"), { code: "runtime_crashed" });
});

for (const [how, words] of [
  ["exit", /exited with code 3/],
  ["throw", /out of the blue/],
]) {
  test(`a worker that dies rejects everything: ${how}`, async () => {
    const running = text({ user: how });
    const asked = engine.tokenize("a");
    for (const promise of [running, asked]) {
      await assert.rejects(promise, (error) => {
        assert.equal(error.code, "worker_crashed");
        assert.match(error.message, words);
        return true;
      });
    }
    await assert.rejects(engine.tokenize("a"), { code: "worker_crashed" });
  });
}

test("unload() ends what runs", async () => {
  const running = text({ ...endless, n: 100 });
  await Promise.all([assert.rejects(running, { code: "engine_closed" }), engine.unload()]);
  await assert.rejects(text(), { code: "engine_closed" });
});
