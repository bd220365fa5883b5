// The interface of a runtime module, below what platform/web makes of it. BUNDLE names a bundle's
// folder; test_wasm.py starts this in node.
import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { pathToFileURL } from "node:url";

const folder = process.env.BUNDLE;
const manifest = JSON.parse(readFileSync(join(folder, "bundle.json")));
const { Runtime, instantiate } = await import(pathToFileURL(join(folder, "platform/web/runtime.js")));
const { Status } = await import(pathToFileURL(join(folder, "platform/web/errors.js")));
const modules = new Map();
for (const path of new Set(manifest.variants.map((variant) => variant.kernels))) {
  modules.set(path, await WebAssembly.compile(readFileSync(join(folder, path))));
}
const baseline = modules.get(manifest.runtime.library);

const create = async (module = baseline) => new Runtime(await instantiate(module));
const message = (runtime) => runtime.string(runtime.call("mlcb_last_error"));

function put(runtime, path, content) {
  const address = runtime.makeFile(path, content.length);
  runtime.bytes(address, content.length).set(content);
  return address;
}

// What a host must hand over: neither modules nor JavaScript, header or licences.
const needed = manifest.files
  .map(({ path }) => path)
  .filter((path) => /^(lib\/.*\.plan|params\/|tokenizer\/|chat\.json)/.test(path));

async function fill(module) {
  const runtime = await create(module);
  for (const path of ["bundle.json", ...needed]) put(runtime, `/b/${path}`, readFileSync(join(folder, path)));
  return runtime;
}

function out(runtime, call) {
  return runtime.scope((memory) => {
    const place = memory.space(8);
    const status = call(place, memory);
    return { status, value: runtime.word(place) };
  });
}

const open = (runtime) =>
  out(runtime, (place, memory) => runtime.call("mlcb_bundle_open", memory.string("/b"), 0, place));

const engine = (runtime, bundle, options) =>
  out(runtime, (place, memory) =>
    runtime.call("mlcb_web_engine_create", bundle, memory.string(JSON.stringify(options)), place));

const submit = (runtime, handle, request) =>
  out(runtime, (place, memory) =>
    runtime.call("mlcb_web_submit", handle, memory.string(JSON.stringify(request)), place));

function run(runtime, handle) {
  const events = [];
  for (let busy = 1; busy; ) {
    busy = out(runtime, (place) => runtime.call("mlcb_engine_step", handle, place)).value;
    for (let text; (text = runtime.string(runtime.call("mlcb_web_poll", handle))) !== ""; ) {
      events.push(JSON.parse(text));
    }
  }
  return events;
}

test("a module asks its host for a clock and for nothing else", () => {
  const allowed = [
    "env.emscripten_notify_memory_growth",
    "wasi_snapshot_preview1.clock_time_get",
    "wasi_snapshot_preview1.proc_exit",
  ];
  for (const module of modules.values()) {
    const names = WebAssembly.Module.imports(module).map((item) => `${item.module}.${item.name}`);
    assert.deepEqual(names.sort(), allowed);
  }
});

test("every function of the C interface is exported", () => {
  const header = readFileSync(join(folder, "include/mlcb.h"), "utf8");
  const declared = [...header.matchAll(/^MLCB_API [^(;]*?(mlcb_\w+)\(/gm)].map((match) => match[1]);
  assert.ok(declared.length > 25);
  for (const module of modules.values()) {
    const exported = new Set(WebAssembly.Module.exports(module).map(({ name }) => name));
    assert.deepEqual([...declared, "malloc", "free", "_initialize"].filter((name) => !exported.has(name)), []);
  }
});

test("the baseline module holds all variants but those of relaxed SIMD", async () => {
  const runtime = await fill(baseline);
  const { value: bundle } = open(runtime);
  assert.equal(engine(runtime, bundle, { variant: "relaxed" }).status, Status.DEVICE);
  assert.match(message(runtime), /relaxed needs relaxed-simd/);
  const { status, value: handle } = engine(runtime, bundle, { max_batch_size: 1 });
  assert.equal(status, Status.OK);
  assert.equal(JSON.parse(runtime.string(runtime.call("mlcb_engine_info", handle))).variant, "simd128");
});

test("a file that is needed and not there is named", async () => {
  const runtime = await fill(baseline);
  runtime.removeFile("/b/chat.json");
  assert.equal(open(runtime).status, Status.BUNDLE);
  assert.match(message(runtime), /chat\.json: file is missing/);
  assert.equal(runtime.scope((m) => runtime.call("mlcb_web_file_remove", m.string("/b/none"))), Status.NOT_FOUND);
});

test("an altered file and a cut one are noticed", async () => {
  const runtime = await fill(baseline);
  const plan = readFileSync(join(folder, "lib/simd128.plan"));
  put(runtime, "/b/lib/simd128.plan", plan.subarray(1));
  assert.equal(open(runtime).status, Status.BUNDLE);
  assert.match(message(runtime), /simd128\.plan: has \d+ bytes/);
  put(runtime, "/b/lib/simd128.plan", plan.map((byte) => byte ^ 1));
  assert.equal(open(runtime).status, Status.HASH);
});

test("an open bundle keeps the params that it maps", async () => {
  const runtime = await fill(baseline);
  const { value: bundle } = open(runtime);
  const { value: handle } = engine(runtime, bundle, { max_batch_size: 1 });
  const answer = () => {
    submit(runtime, handle, { token_ids: [1, 2, 3], max_tokens: 8, ignore_eos: true });
    return run(runtime, handle).map(({ token_id: id }) => id);
  };
  const before = answer();
  for (const path of needed) runtime.removeFile(`/b/${path}`);
  // What was freed is used again, and must be no part of the weights.
  for (let i = 0; i < 64; ++i) put(runtime, `/other/${i}`, new Uint8Array(1 << 16).fill(255));
  assert.deepEqual(answer(), before);
  assert.equal(before.length, 9);
});

test("sha256 at once and in pieces is that of node", async () => {
  const runtime = await create();
  const hex = (place) => Buffer.from(runtime.bytes(place, 32)).toString("hex");
  for (const size of [0, 1, 55, 56, 63, 64, 65, 127, 128, 1000]) {
    const data = Uint8Array.from({ length: size }, (_, i) => (i * 7 + size) & 255);
    const expected = createHash("sha256").update(data).digest("hex");
    runtime.scope((memory) => {
      const at = memory.bytes(data);
      const place = memory.space(32);
      runtime.call("mlcb_web_sha256", at, size, place);
      assert.equal(hex(place), expected, `${size} bytes`);
      for (const piece of [1, 17, 64, 100]) {
        const hash = runtime.call("mlcb_web_sha256_init");
        for (let begin = 0; begin < size; begin += piece) {
          runtime.call("mlcb_web_sha256_update", hash, at + begin, Math.min(piece, size - begin));
        }
        runtime.call("mlcb_web_sha256_final", hash, place);
        assert.equal(hex(place), expected, `${size} bytes in pieces of ${piece}`);
      }
    });
  }
});

test("there are no threads, and the runtime says so", async () => {
  const runtime = await fill(baseline);
  const { value: bundle } = open(runtime);
  assert.equal(engine(runtime, bundle, { threads: 2 }).status, Status.UNSUPPORTED);
  assert.match(message(runtime), /platform without/);
  const { value: handle } = engine(runtime, bundle, { threads: 1, max_batch_size: 1 });
  assert.equal(runtime.call("mlcb_engine_start", handle), Status.UNSUPPORTED);
  assert.match(message(runtime), /call mlcb_engine_step/);
});

test("options and requests are read by the names of their fields", async () => {
  const runtime = await fill(baseline);
  const { value: bundle } = open(runtime);
  for (const [options, what] of [
    [{ treads: 1 }, /unknown key "treads"/],
    [{ struct_size: 4 }, /unknown key "struct_size"/],
    [{ max_batch_size: "one" }, /max_batch_size: expected an integer/],
    [{ max_batch_size: 4294967297 }, /max_batch_size: 4294967297 is out of range/],
    [[], /object/],
  ]) {
    assert.equal(engine(runtime, bundle, options).status, Status.ARGUMENT, JSON.stringify(options));
    assert.match(message(runtime), what);
  }
  const { value: handle } = engine(runtime, bundle, {
    max_batch_size: 2, no_prefix_cache: true, profile: false, mode: null, activations: "float",
  });
  const prompt = { token_ids: [5, 6, 7], max_tokens: 3, ignore_eos: true };
  for (const [extra, what] of [
    [{ token_id: [1] }, /unknown key "token_id"/],
    [{ stop: "x" }, /stop: expected an array/],
    [{ seed: "a lot" }, /seed: "a lot" is no seed/],
    [{ logit_bias: { x: 1 } }, /logit_bias: "x" is no token id/],
    [{ logit_bias: [[1]] }, /logit_bias: an entry is no pair/],
    [{ token_ids: [-1] }, /token/],
  ]) {
    assert.equal(submit(runtime, handle, { ...prompt, ...extra }).status, Status.ARGUMENT, JSON.stringify(extra));
    assert.match(message(runtime), what);
  }
  const first = (extra) => {
    assert.equal(submit(runtime, handle, { ...prompt, ...extra }).status, Status.OK);
    return run(runtime, handle)[0];
  };
  const plain = first({ logprobs: true, top_logprobs: 2 });
  assert.equal(plain.kind, "token");
  assert.deepEqual(plain.top_logprobs[0], { token_id: plain.token_id, logprob: plain.logprob });
  const second = plain.top_logprobs[1].token_id;
  assert.equal(first({ logit_bias: { [plain.token_id]: null } }).token_id, second);
  assert.equal(first({ logit_bias: [[plain.token_id, -100]] }).token_id, second);
  const draw = (seed) => first({ temperature: 2, seed }).token_id;
  assert.equal(draw("18446744073709551615"), draw("18446744073709551615"));
  const done = (submit(runtime, handle, { ...prompt, stop_token_ids: [plain.token_id] }), run(runtime, handle)).at(-1);
  assert.equal(done.kind, "done");
  assert.equal(done.finish_reason, "stop");
});

test("memory that the host does not have is an answer, not a crash", async () => {
  const runtime = await create();
  const size = 0xfffffff0;
  assert.equal(runtime.scope((memory) => runtime.call("mlcb_web_file", memory.string("/huge"), size)), 0);
  assert.match(message(runtime), /memory/);
  put(runtime, "/small", new Uint8Array(10)); // and goes on
});
