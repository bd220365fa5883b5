// What a host can do, which variant it gets, hashes, WASI, options, the declared types.

import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { readFile } from "node:fs/promises";
import { resolve } from "node:path";
import { describe, test } from "node:test";

import { closest } from "../../mlcbuild/runtime_stub/platform/web/check.js";
import { chooseVariant, hostCapabilities } from "../../mlcbuild/runtime_stub/platform/web/host.js";
import { pathProblem } from "../../mlcbuild/runtime_stub/platform/web/manifest.js";
import * as module from "../../mlcbuild/runtime_stub/platform/web/mlcb.js";
import {
  engineOptions,
  optionNames,
  readOptions,
} from "../../mlcbuild/runtime_stub/platform/web/options.js";
import { ChatRequest, TextRequest } from "../../mlcbuild/runtime_stub/platform/web/protocol.js";
import { sha256 } from "../../mlcbuild/runtime_stub/platform/web/sha256.js";
import { openSource } from "../../mlcbuild/runtime_stub/platform/web/source.js";
import { makeImports } from "../../mlcbuild/runtime_stub/platform/web/wasi.js";
import { fakeWorld, makeBundle } from "./fake_bundle.mjs";
import { fakeWasm } from "./fake_wasm.mjs";

const { Engine, MlcbError } = module;

describe("variants", () => {
  const { variants } = JSON.parse(new TextDecoder().decode(makeBundle().get("bundle.json")));
  const all = new Set(["exceptions", "simd128", "relaxed-simd"]);
  const plain = new Set(["exceptions", "simd128"]);
  const choose = (options, has) => chooseVariant(variants, options, has).name;

  test("the best that the host runs", () => {
    assert.equal(choose({}, all), "relaxed");
    assert.equal(choose({}, plain), "simd128");
    assert.equal(choose({ activations: "float" }, all), "simd128-float");
    assert.equal(choose({ variant: "simd128" }, all), "simd128");
  });

  test("what is lacking is named", () => {
    assert.throws(() => choose({}, new Set(["exceptions"])), {
      status: 501,
      code: "unsupported_host",
      message: /it lacks WebAssembly SIMD \(Chrome 91/,
    });
    assert.throws(() => choose({ variant: "relaxed" }, plain), /lacks WebAssembly relaxed SIMD/);
    assert.throws(() => choose({}, new Set(["simd128"])), /lacks WebAssembly exceptions/);
    assert.throws(() => choose({ variant: "avx2" }, all), {
      code: "invalid_option",
      message: /no variant avx2; it has relaxed \(int8\)/,
    });
    assert.throws(() => choose({ variant: "relaxed", activations: "float" }, all), {
      param: "variant",
    });
  });

  test("the module of the chosen variant is compiled", async () => {
    const world = fakeWorld();
    const compiled = [];
    world.compile = async (bytes) => {
      compiled.push(new TextDecoder().decode(bytes));
    };
    await Engine.loadWith({ ...world, capabilities: () => plain }, "fake", { worker: false });
    await Engine.loadWith(world, "fake", { worker: false });
    assert.deepEqual(compiled, ["the plain module", "the relaxed module"]);
    world.compile = async () => {
      throw new WebAssembly.CompileError("bad opcode");
    };
    await assert.rejects(Engine.loadWith(world, "fake", { worker: false }), {
      code: "unsupported_host",
      why: "bad opcode",
    });
  });

  test("this node has what a bundle needs at least", () => {
    assert.ok(hostCapabilities().has("simd128"));
    assert.ok(hostCapabilities().has("exceptions"));
    assert.equal(hostCapabilities(() => false).size, 0);
  });
});

test("modules of another interface, or without what is needed", async () => {
  const load = (wasm) => Engine.loadWith(fakeWorld(makeBundle(), wasm), "fake", { worker: false });
  await assert.rejects(load(fakeWasm({ abi: 3 })), {
    code: "bundle_version",
    message: /ABI version 3/,
  });
  await assert.rejects(load(fakeWasm({ bundleStatus: 20 })), {
    code: "bundle_damaged",
    why: "it was told to",
  });
  const wasm = fakeWasm();
  delete wasm.exports.mlcb_web_engine_create;
  await assert.rejects(load(wasm), /the bundle's runtime lacks mlcb_web_engine_create/);
  assert.equal(wasm.state.handles.size, 0, "the bundle was closed");
});

test("sha256 is SHA-256, with and without the browser's", async () => {
  for (const size of [0, 1, 55, 56, 63, 64, 65, 1000]) {
    const bytes = Uint8Array.from({ length: size }, (_, i) => i * 31);
    const want = createHash("sha256").update(bytes).digest("hex");
    assert.equal(await sha256(bytes), want);
    assert.equal(await sha256(bytes, null), want);
    assert.equal(await sha256(new Uint8Array([9, ...bytes]).subarray(1), null), want);
  }
});

// A module of imports only, to be read by makeImports.
function importing(...names) {
  const string = (text) => [text.length, ...new TextEncoder().encode(text)];
  // The size as LEB128 in two bytes.
  const section = (id, bytes) => [id, (bytes.length & 127) | 128, bytes.length >> 7, ...bytes];
  const imports = names.flatMap(([space, name]) => [...string(space), ...string(name), 0, 0]);
  return new WebAssembly.Module(
    new Uint8Array([
      0,
      0x61,
      0x73,
      0x6d,
      1,
      0,
      0,
      0,
      ...section(1, [1, 0x60, 0, 0]),
      ...section(2, [names.length, ...imports]),
    ]),
  );
}

test("WASI: a clock, random numbers, lines to the console, the end", () => {
  const lines = [];
  const names = [
    "clock_time_get",
    "random_get",
    "fd_write",
    "proc_exit",
    "environ_sizes_get",
    "path_open",
    "fd_fdstat_get",
  ];
  const { imports, attach } = makeImports(
    importing(...names.map((name) => ["wasi_snapshot_preview1", name]), [
      "env",
      "emscripten_notify_memory_growth",
    ]),
    (line) => lines.push(line),
  );
  const memory = new WebAssembly.Memory({ initial: 4 });
  attach(memory);
  const wasi = imports.wasi_snapshot_preview1;
  const view = new DataView(memory.buffer);
  assert.equal(wasi.clock_time_get(0, 0n, 8), 0);
  assert.ok(Math.abs(Number(view.getBigUint64(8, true)) / 1e6 - Date.now()) < 10_000);
  assert.equal(wasi.clock_time_get(1, 0n, 8), 0);
  assert.equal(wasi.random_get(1024, 100_000), 0);
  assert.ok(
    new Uint8Array(memory.buffer, 1024, 100_000).filter((byte) => byte === 0).length < 1000,
  );
  const write = (descriptor, text) => {
    const data = new TextEncoder().encode(text);
    new Uint8Array(memory.buffer, 200, data.length).set(data);
    view.setUint32(100, 200, true);
    view.setUint32(104, data.length, true);
    return wasi.fd_write(descriptor, 100, 1, 96);
  };
  assert.equal(write(2, "half a "), 0);
  assert.deepEqual(lines, []);
  write(2, "line\nand more\n");
  assert.deepEqual(lines, ["half a line", "and more"]);
  assert.equal(view.getUint32(96, true), 14);
  assert.equal(write(7, "x"), 8);
  assert.throws(() => wasi.proc_exit(3), /exited with code 3/);
  assert.equal(wasi.environ_sizes_get(0, 4), 0);
  assert.equal(wasi.path_open(), 58);
  assert.equal(wasi.fd_fdstat_get(1, 0), 0);
  assert.throws(() => makeImports(importing(["env", "socket"])), /asks for env.socket/);
});

test("options", () => {
  const limits = { context_window_size: 8192, max_batch_size: 8 };
  const made = (given) =>
    engineOptions(readOptions(given).load, { name: "v", activations: "int8" }, limits);
  assert.deepEqual(made({}), {
    variant: "v",
    activations: "int8",
    mode: null,
    max_batch_size: 4,
    kv_tokens: 4096,
    kv_bytes: 0,
    max_waiting: 0,
    no_prefix_cache: 0,
    speculation: null,
    speculation_tokens: 0,
    profile: 0,
  });
  assert.equal(made({ contextTokens: 1000, maxBatchSize: 3 }).kv_tokens, 3000);
  assert.equal(made({ contextTokens: 99_999, maxBatchSize: 1 }).kv_tokens, 8192);
  assert.equal(made({ kvBytes: 5 }).kv_tokens, 0);
  assert.equal(made({ prefixCache: false }).no_prefix_cache, 1);
  const wrong = (given, words) =>
    assert.throws(
      () => readOptions(given),
      (error) => {
        assert.equal(error.code, "invalid_option");
        assert.match(error.message, words);
        return true;
      },
    );
  wrong({ contextToken: 1 }, /unknown option contextToken; did you mean contextTokens\?/);
  wrong({ cache: "disk" }, /cache: input should be 'auto', 'opfs', 'cache-api' or 'none'/);
  wrong({ kvTokens: 1, contextTokens: 1 }, /both say/);
  wrong({ worker: 1 }, /worker is true/);
  wrong({ onProgress: 1 }, /onProgress is a function/);
  wrong({ signal: 1 }, /signal is an AbortSignal/);
  wrong([], /an object/);
});

test("where a bundle is", async () => {
  assert.equal(
    (await openSource("https://example.org/a?x=1")).location.href,
    "https://example.org/a/",
  );
  assert.equal(
    (await openSource("https://example.org/a/bundle.json")).location.href,
    "https://example.org/a/",
  );
  const signed = await openSource("https://example.org/a/bundle.json?x=1#y");
  assert.equal(signed.location.href, "https://example.org/a/");
  assert.equal(signed.address.href, "https://example.org/a/?x=1");
  assert.equal((await openSource("./b/bundle.json")).location, resolve("b"));
  assert.equal((await openSource(new URL("file:///tmp/x%20y"))).location, "/tmp/x y");
  assert.equal((await openSource("/tmp/x")).isRemote, false);
  for (const bad of ["", null, undefined, 5]) {
    await assert.rejects(openSource(bad), { code: "invalid_option", param: "bundle" });
  }
  await assert.rejects(Engine.load("/no/such/folder"), { status: 404, code: "bundle_not_found" });
});

test("a manifest that is not this engine's, or that lists what no bundle may", async () => {
  const load = (manifest) =>
    Engine.loadWith(fakeWorld(makeBundle({ manifest })), "fake", { worker: false });
  const client = { kind: "client", target: "web-wasm32-webgpu", abi_version: undefined };
  await assert.rejects(load(client), {
    status: 501,
    code: "unsupported_host",
    text: "the bundle is for MLC's browser client (client.js), not for the CPU engine (mlcb.js)",
    hint: "build it for the target web-wasm32-cpu",
  });
  await assert.rejects(load({ bundle_version: 2 }), { code: "bundle_version" });
  await assert.rejects(load({ abi_version: 1 }), { code: "bundle_version" });
  const file = { path: "a", size: 1, sha256: "0".repeat(64) };
  const bad = ["", "/a", "a/../b", "..", "./a", "a//b", "a/", "a\\b", "a\0b", "C:/a", "c:", 5, null];
  for (const path of bad) {
    assert.notEqual(pathProblem(path), null);
    await assert.rejects(load({ files: [{ ...file, path }] }), {
      status: 500,
      code: "bundle_damaged",
      message: /lists a path that is refused/,
    });
  }
  for (const path of ["a", "a/b.c", "..a/b..", "lib/ä ö"]) assert.equal(pathProblem(path), null);
  for (const wrong of [{ size: -1 }, { size: 1.5 }, { size: "1" }, { sha256: "0" }]) {
    await assert.rejects(load({ files: [{ ...file, ...wrong }] }), { code: "bundle_damaged" });
  }
  await assert.rejects(load({ files: null }), { code: "bundle_damaged" });
});

test("the closest name", () => {
  assert.equal(closest("tempratur", ["top_p", "temperature"]), "temperature");
  assert.equal(closest("zzz", ["top_p", "temperature"]), null);
});

test("the declared types name what there is", async () => {
  const types = await readFile(
    new URL("../../mlcbuild/runtime_stub/platform/web/mlcb.d.ts", import.meta.url),
    "utf8",
  );
  const declared = [...types.matchAll(/^export (?:declare )?(?:class|function|const) (\w+)/gm)].map(
    (it) => it[1],
  );
  assert.deepEqual(declared.sort(), Object.keys(module).sort());
  const body = (kind, name) => {
    const found = new RegExp(
      `^export (?:declare )?${kind} ${name}\\b[^{]*\\{\\n(.*?)^\\}`,
      "ms",
    ).exec(types);
    assert.ok(found, `${kind} ${name} is not declared`);
    return [
      ...new Set(
        [...found[1].matchAll(/^ {2}(?:static |readonly )*(\w+)\??[(:]/gm)].map((it) => it[1]),
      ),
    ];
  };
  const engine = await Engine.loadWith(fakeWorld(), "fake", { worker: false });
  const own = (value) =>
    Object.getOwnPropertyNames(value).filter(
      (name) => !["constructor", "length", "name", "prototype"].includes(name),
    );
  const there = [...own(Engine), ...own(Engine.prototype), ...own(engine)].filter(
    (name) => name !== "loadWith",
  );
  assert.deepEqual(
    body("class", "Engine")
      .filter((name) => name !== "constructor")
      .sort(),
    there.sort(),
  );
  const error = new MlcbError("x");
  const fields = [...own(error), ...own(MlcbError.prototype)].filter(
    (name) => !["stack", "message"].includes(name),
  );
  assert.deepEqual(
    body("class", "MlcbError")
      .filter((name) => name !== "constructor")
      .sort(),
    [...new Set([...fields, "name"])].filter((name) => name !== "name").sort(),
  );
  await engine.unload();
  assert.deepEqual(body("interface", "LoadOptions").sort(), [...optionNames].sort());
  const shared = body("interface", "SamplingParams");
  for (const [name, kind] of [
    ["ChatParams", ChatRequest],
    ["CompletionParams", TextRequest],
  ]) {
    assert.deepEqual(
      [...shared, ...body("interface", name)].sort(),
      Object.keys(kind.fields).sort(),
    );
  }
});
