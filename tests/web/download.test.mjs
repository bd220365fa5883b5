// Loading over a connection that breaks, from servers of several minds, with and without a cache.

import assert from "node:assert/strict";
import { afterEach, beforeEach, describe, test } from "node:test";

import { PIECE } from "../../mlcbuild/runtime_stub/platform/web/cache.js";
import { Engine } from "../../mlcbuild/runtime_stub/platform/web/mlcb.js";
import { breakAfter, fakeWorld, makeBundle, noise, serveFiles, sha256 } from "./fake_bundle.mjs";
import { fakeCaches, fakeOpfs, noStorage } from "./fake_storage.mjs";
import { fakeWasm } from "./fake_wasm.mjs";

const SHARD = "params/params_shard_0.bin";
const big = noise(PIECE + 300_001, 7);

let server;
let files;

beforeEach(async () => {
  noStorage();
  files = makeBundle({ shard: big });
  server = await serveFiles(new Map(files));
});

afterEach(async () => {
  noStorage();
  await server.close();
});

/** Loads from the server; the shard as it is in the module's memory, and what was told. */
async function load({ url = server.url, ...options } = {}) {
  const wasm = fakeWasm();
  const told = [];
  server.log.length = 0;
  const world = { ...fakeWorld(null, wasm) };
  const engine = await Engine.loadWith(world, url, {
    worker: false,
    onProgress: (progress) => told.push(progress),
    ...options,
  });
  const inside = (path) => {
    const { at, size } = wasm.state.files.get(`/bundle/${path}`);
    return new Uint8Array(wasm.exports.memory.buffer, at, size).slice();
  };
  return {
    engine,
    told,
    inside,
    shard: inside(SHARD),
    asked: server.log.map(([path]) => path),
    state: wasm.state,
  };
}

const ranges = () => server.log.filter(([path]) => path === SHARD).map(([, range]) => range);

describe("without a cache", () => {
  test("what the runtime needs is fetched, once, into its memory", async () => {
    const { shard, asked, told, state, engine } = await load();
    assert.deepEqual(shard, big);
    assert.deepEqual(asked.sort(), [
      "bundle.json",
      "chat.json",
      "golden.json",
      "lib/mlcb-relaxed.wasm",
      "lib/relaxed.plan",
      "lib/simd128-float.plan",
      "lib/simd128.plan",
      "params/index.json",
      SHARD,
      "tokenizer/tokenizer.bin",
    ]);
    assert.ok(state.files.has("/bundle/bundle.json"));
    assert.deepEqual(
      [...new Set(told.map((it) => it.phase))],
      ["manifest", "download", "compile", "open"],
    );
    const last = told.at(-1);
    assert.equal(last.loadedBytes, last.totalBytes);
    assert.ok(told.every((it, i) => i === 0 || it.loadedBytes >= told[i - 1].loadedBytes));
    assert.deepEqual(engine.warnings, []);
  });

  test("the query of the bundle's URL goes with every request, and into no message", async () => {
    const { shard, asked } = await load({ url: `${server.url}bundle.json?key=a%2Fb&x` });
    assert.deepEqual(shard, big);
    assert.equal(asked.length, 10);
    assert.deepEqual([...server.queries], ["key=a%2Fb&x"]);
    server.behave = (path, request, response) => Boolean(response.writeHead(403).end());
    await assert.rejects(load({ url: `${server.url}?key=secret` }), (error) => {
      assert.equal(error.code, "network_error");
      assert.doesNotMatch(error.message, /secret/);
      return true;
    });
  });

  test("a connection that breaks goes on from the first missing byte", async () => {
    let breaks = 0;
    server.behave = (path, request, response) => {
      if (path !== SHARD || breaks === 3) return false;
      breaks += 1;
      const from = Number(/bytes=(\d+)-/.exec(request.headers.range ?? "bytes=0-")[1]);
      breakAfter(response, big, from, 100_000);
      return true;
    };
    const { shard } = await load();
    assert.deepEqual(shard, big);
    const asked = ranges();
    assert.equal(asked.length, 4);
    assert.equal(asked[0], null);
    const starts = asked.slice(1).map((range) => Number(/bytes=(\d+)-/.exec(range)[1]));
    assert.ok(
      starts.every((start, i) => start > (starts[i - 1] ?? 0)),
      String(starts),
    );
  });

  test("a server without ranges sends the whole, which is passed over", async () => {
    server.ranges = false;
    let broken = false;
    server.behave = (path, request, response) => {
      if (path !== SHARD || broken) return false;
      broken = true;
      breakAfter(response, big, 0, 4_300_000);
      return true;
    };
    const { shard } = await load();
    assert.deepEqual(shard, big);
    assert.match(ranges()[1], /^bytes=\d+-$/);
  });

  test("a server that is busy is asked again, not for ever", async () => {
    let refusals = 0;
    server.behave = (path, request, response) => {
      if (path !== SHARD || refusals === 2) return false;
      refusals += 1;
      response.writeHead(503).end();
      return true;
    };
    assert.deepEqual((await load()).shard, big);
    server.behave = (path, request, response) =>
      path === SHARD && Boolean(response.writeHead(503).end());
    await assert.rejects(load(), (error) => {
      assert.equal(error.code, "network_error");
      assert.equal(error.status, 502);
      assert.match(
        error.message,
        /^params\/params_shard_0.bin of the bundle cannot be fetched; .*status 503/,
      );
      return true;
    });
    assert.equal(ranges().length, 4);
  });

  test("a damaged file is fetched again once, then named", async () => {
    const damaged = big.slice();
    damaged[PIECE + 5] ^= 1;
    let sent = 0;
    server.behave = (path, request, response) => {
      if (path !== SHARD || sent > 0) return false;
      sent += 1;
      response.end(damaged);
      return true;
    };
    const { shard, engine, told } = await load();
    assert.deepEqual(shard, big);
    assert.match(
      engine.warnings[0],
      /^params\/params_shard_0.bin was damaged and is fetched again/,
    );
    assert.ok(told.some((it) => it.warning === engine.warnings[0]));
    assert.equal(told.at(-1).loadedBytes, told.at(-1).totalBytes);
    server.files.set(SHARD, damaged);
    await assert.rejects(load(), {
      code: "bundle_damaged",
      status: 500,
      text: `${SHARD} of the bundle is damaged: its sha256 is ${sha256(damaged)}, bundle.json says ${sha256(big)}`,
    });
    assert.equal(ranges().length, 2);
  });

  for (const [what, bytes, words] of [
    ["longer", noise(big.length + 1, 7), /has more bytes than the \d+ that bundle.json says/],
    ["shorter", big.slice(0, 1000), /another file now/],
    ["empty", new Uint8Array(), /has 0 bytes, bundle.json says/],
  ]) {
    test(`a file that is ${what}`, async () => {
      server.files.set(SHARD, bytes);
      await assert.rejects(load(), (error) => {
        assert.equal(error.code, "bundle_damaged");
        assert.match(error.message, words);
        return true;
      });
    });
  }

  test("files that are not there, and what is no bundle", async () => {
    server.files.delete(SHARD);
    await assert.rejects(load(), {
      status: 404,
      code: "bundle_not_found",
      text: `${SHARD} of the bundle is not there`,
    });
    server.files.set("bundle.json", new TextEncoder().encode("<html>"));
    await assert.rejects(load(), {
      code: "bundle_damaged",
      text: "bundle.json of the bundle is not JSON",
    });
    for (const [changes, code] of [
      [{ bundle_version: 9 }, "bundle_version"],
      [
        { variants: [{ name: "avx2", kernels: "lib/kernels-avx2.so", capability: [] }] },
        "unsupported_host",
      ],
    ]) {
      server.files = makeBundle({ manifest: changes });
      await assert.rejects(load(), { code });
    }
  });

  test("an abort ends the load where it is", async () => {
    const controller = new AbortController();
    server.behave = (path, request, response) => {
      if (path !== SHARD) return false;
      response.writeHead(200, { "content-length": big.length });
      response.write(big.subarray(0, 1000), () => controller.abort());
      return true;
    };
    await assert.rejects(load({ signal: controller.signal }), { name: "AbortError" });
    await assert.rejects(load({ signal: AbortSignal.abort(new Error("no")) }), /no/);
  });

  test("no memory for a file is said in numbers", async () => {
    const wasm = fakeWasm();
    wasm.exports.mlcb_web_file = () => 0;
    await assert.rejects(Engine.loadWith(fakeWorld(null, wasm), server.url, { worker: false }), {
      status: 503,
      code: "out_of_memory",
    });
  });
});

for (const kind of ["cache-api", "opfs"]) {
  describe(`with a cache: ${kind}`, () => {
    let storage;
    const make = (limits) => {
      storage = kind === "opfs" ? fakeOpfs(limits) : fakeCaches(limits);
    };
    const kept = () =>
      kind === "opfs"
        ? [...storage.files.keys()]
        : [
            ...new Set(
              [...(storage.stores.get("mlcb-cache") ?? new Map()).keys()].map(
                (url) => url.split("/")[3],
              ),
            ),
          ];
    /** Changes a byte of what is kept of the shard. */
    const spoil = () => {
      const bytes =
        kind === "opfs"
          ? storage.files.get(sha256(big))
          : storage.stores.get("mlcb-cache").get(`https://mlcb.invalid/${sha256(big)}/1`).bytes;
      bytes[kind === "opfs" ? PIECE + 9 : 9] ^= 4;
    };

    test("the second load fetches bundle.json only", async () => {
      make();
      await load();
      const { shard, asked, told } = await load();
      assert.deepEqual(asked, ["bundle.json"]);
      assert.deepEqual(shard, big);
      assert.equal(told.at(-1).loadedBytes, told.at(-1).totalBytes);
      if (kind === "opfs") assert.equal(storage.locked.size, 0);
    });

    test("a bundle is the same one under another query", async () => {
      make();
      await load({ url: `${server.url}?key=1` });
      assert.deepEqual((await load({ url: `${server.url}?key=2` })).asked, ["bundle.json"]);
    });

    test("without a server what is kept is used, and that is said", async () => {
      make();
      await load();
      server.behave = (path, request, response) => Boolean(response.writeHead(503).end());
      const { shard, engine } = await load();
      assert.deepEqual(shard, big);
      assert.match(engine.warnings[0], /^the server does not answer/);
    });

    test("a load that was cut off goes on", async () => {
      make();
      const controller = new AbortController();
      const sent = PIECE + 200_000;
      server.behave = (path, request, response) => {
        if (path !== SHARD) return false;
        response.writeHead(200, { "content-length": big.length });
        response.write(big.subarray(0, sent), () => setTimeout(() => controller.abort(), 200));
        return true;
      };
      await assert.rejects(load({ signal: controller.signal }), { name: "AbortError" });
      server.behave = () => false;
      const { shard } = await load();
      assert.deepEqual(shard, big);
      assert.deepEqual(ranges(), [`bytes=${sent}-`]);
      assert.deepEqual((await load()).asked, ["bundle.json"]);
    });

    test("a damaged file is dropped, fetched again and kept", async () => {
      make();
      await load();
      spoil();
      const { shard, asked, engine } = await load();
      assert.deepEqual(shard, big);
      assert.deepEqual(asked, ["bundle.json", SHARD]);
      assert.match(engine.warnings[0], /damaged/);
      const after = await load();
      assert.deepEqual(after.asked, ["bundle.json"]);
      assert.deepEqual(after.engine.warnings, []);
    });

    test("a damaged file whose source is damaged too is not kept", async () => {
      make();
      server.files.set(SHARD, noise(big.length, 8));
      await assert.rejects(load(), { code: "bundle_damaged" });
      server.files.set(SHARD, big);
      const { shard } = await load();
      assert.deepEqual(shard, big);
      assert.deepEqual(ranges(), [null]);
    });

    test("another version shares what is equal and drops what is not used", async () => {
      make();
      await load();
      const former = sha256(files.get("tokenizer/tokenizer.bin"));
      assert.ok(kept().includes(former));
      files = makeBundle({ shard: big });
      const changed = new TextEncoder().encode("packed anew");
      const manifest = JSON.parse(new TextDecoder().decode(files.get("bundle.json")));
      const entry = manifest.files.find((file) => file.path === "tokenizer/tokenizer.bin");
      Object.assign(entry, { size: changed.length, sha256: sha256(changed) });
      files.set("tokenizer/tokenizer.bin", changed);
      files.set("bundle.json", new TextEncoder().encode(JSON.stringify(manifest)));
      // While the server has only a part of the new version, the former one stays.
      server.files = new Map([...files, ["tokenizer/tokenizer.bin", noise(5)]]);
      await assert.rejects(load(), { code: "bundle_damaged" });
      assert.ok(kept().includes(former));
      server.behave = (path, request, response) => Boolean(response.writeHead(503).end());
      assert.deepEqual(
        (await load()).inside("tokenizer/tokenizer.bin"),
        new TextEncoder().encode("packed"),
      );
      server.behave = () => false;
      server.files = files;
      const { asked, inside } = await load();
      assert.deepEqual(asked, ["bundle.json", "tokenizer/tokenizer.bin"]);
      assert.deepEqual(inside("tokenizer/tokenizer.bin"), changed);
      assert.ok(!kept().includes(former));
    });

    test("a full storage is told, and the load goes on", async () => {
      make({ limit: PIECE + 100_000 });
      const { shard, engine } = await load();
      assert.deepEqual(shard, big);
      assert.equal(engine.warnings.length, 1);
      assert.match(engine.warnings[0], /no room left/);
    });

    test("clearCache forgets one bundle, or all", async () => {
      make();
      await load();
      await Engine.clearCache(`${server.url}other/`);
      assert.ok(kept().includes(sha256(big)));
      await Engine.clearCache(server.url);
      assert.deepEqual(kept(), []);
      await load();
      await Engine.clearCache();
      assert.deepEqual(kept(), []);
      assert.ok((await load()).asked.length > 1);
    });

    test("cache: none keeps nothing", async () => {
      make();
      await load({ cache: "none" });
      assert.deepEqual(kept(), []);
    });
  });
}

test("another tab that writes: without being kept, and that is said", async () => {
  const storage = fakeOpfs();
  storage.locked.add(sha256(big));
  const { shard, engine } = await load();
  assert.deepEqual(shard, big);
  assert.match(engine.warnings[0], /another tab/);
});

test("a cache that is not there cannot be asked for", async () => {
  await assert.rejects(load({ cache: "opfs" }), { code: "invalid_option", param: "cache" });
  await assert.rejects(load({ cache: "cache-api" }), { code: "invalid_option", param: "cache" });
});

test("without crypto.subtle the module hashes", async () => {
  const before = Object.getOwnPropertyDescriptor(globalThis, "crypto");
  const { getRandomValues } = crypto;
  const bare = { getRandomValues: getRandomValues.bind(crypto) };
  Object.defineProperty(globalThis, "crypto", { configurable: true, value: bare });
  try {
    assert.deepEqual((await load()).shard, big);
    server.files.set(SHARD, noise(big.length, 8));
    await assert.rejects(load(), { code: "bundle_damaged" });
  } finally {
    Object.defineProperty(globalThis, "crypto", before);
  }
});
