// Bundles of made-up files, in memory, and a server that can misbehave.

import { createHash } from "node:crypto";
import { createServer } from "node:http";

import { fakeWasm } from "./fake_wasm.mjs";

export const sha256 = (bytes) => createHash("sha256").update(bytes).digest("hex");

/** Bytes that look random, the same every time. */
export function noise(size, seed = 1) {
  const bytes = new Uint8Array(size);
  let word = seed;
  for (let i = 0; i < size; ++i) {
    word = (Math.imul(word, 1664525) + 1013904223) >>> 0;
    bytes[i] = word >>> 24;
  }
  return bytes;
}

const text = (value) =>
  new TextEncoder().encode(typeof value === "string" ? value : JSON.stringify(value));

const variant = (name, capability, activations) => ({
  name,
  activations,
  capability,
  kernels: `lib/mlcb-${capability.length > 1 ? "relaxed" : "simd128"}.wasm`,
  plan: `lib/${name}.plan`,
});

export const CHAT = {
  chat_version: 2,
  template: "{{ messages }}",
  sampling: { temperature: 0.5, top_k: 40 },
};

/** The files of a bundle by path, bundle.json among them. */
export function makeBundle({ shard = noise(300_000), chat = CHAT, manifest = {} } = {}) {
  const files = new Map(
    Object.entries({
      "chat.json": text(chat),
      "golden.json": text({ golden_version: 1 }),
      "include/mlcb.h": text("/* not needed here */"),
      "lib/mlcb-relaxed.wasm": text("the relaxed module"),
      "lib/mlcb-simd128.wasm": text("the plain module"),
      "lib/relaxed.plan": text("relaxed plan"),
      "lib/simd128.plan": text("plan"),
      "lib/simd128-float.plan": text("float plan"),
      "params/index.json": text({ params_version: 1 }),
      "params/params_shard_0.bin": shard,
      "tokenizer/tokenizer.bin": text("packed"),
      "tokenizer/tokenizer.json": text("not needed here either"),
    }),
  );
  const listed = [...files].map(([path, bytes]) => ({
    path,
    size: bytes.length,
    sha256: sha256(bytes),
  }));
  files.set(
    "bundle.json",
    text({
      bundle_version: 1,
      abi_version: 2,
      name: "fake",
      target: "web-wasm32-cpu",
      chat: "chat.json",
      golden: "golden.json",
      tokenizer: "tokenizer/tokenizer.json",
      params: "params/index.json",
      model: { vocab_size: 260 },
      limits: { context_window_size: 100, max_batch_size: 8 },
      tree_digest: "sha256:0123456789abcdef",
      variants: [
        variant("relaxed", ["simd128", "relaxed-simd"], "int8"),
        variant("simd128", ["simd128"], "int8"),
        variant("simd128-float", ["simd128"], "float"),
      ],
      files: listed,
      ...manifest,
    }),
  );
  return files;
}

/** A source in memory, as openSource() makes them. */
export function memorySource(files) {
  return {
    isRemote: false,
    location: "memory",
    async *read(path, from) {
      yield files.get(path).subarray(from);
    },
  };
}

/** What loads a made-up bundle with a made-up module; `wasm` comes from fakeWasm(). */
export function fakeWorld(files = makeBundle(), wasm = fakeWasm()) {
  return {
    wasm,
    capabilities: () => new Set(["exceptions", "simd128", "relaxed-simd"]),
    compile: async (bytes) => bytes,
    instantiate: async () => wasm.exports,
    firstPause: 1,
    ...(files !== null && { openSource: async () => memorySource(files) }),
  };
}

/**
 * A server of files. `behave(path, request, response)` may answer itself and return true; `log`
 * holds [path, range] of each request, `queries` what stood behind a question mark.
 */
export async function serveFiles(files, { ranges = true } = {}) {
  const server = { files, ranges, log: [], queries: new Set(), behave: () => false };
  const http = createServer((request, response) => {
    const [address, query = ""] = request.url.slice(1).split("?");
    const path = decodeURIComponent(address);
    server.queries.add(query);
    const range = request.headers.range;
    server.log.push([path, range ?? null]);
    if (server.behave(path, request, response)) return;
    const bytes = server.files.get(path);
    if (bytes === undefined) {
      response.writeHead(404).end();
      return;
    }
    const from = range && server.ranges ? Number(/^bytes=(\d+)-$/.exec(range)[1]) : 0;
    if (from > 0 && from >= bytes.length) {
      response.writeHead(416).end();
      return;
    }
    if (range && server.ranges) {
      response.writeHead(206, {
        "content-range": `bytes ${from}-${bytes.length - 1}/${bytes.length}`,
      });
    }
    response.end(bytes.subarray(from));
  });
  await new Promise((resolve) => {
    http.listen(0, "127.0.0.1", resolve);
  });
  server.url = `http://127.0.0.1:${http.address().port}/`;
  server.close = () => {
    http.closeAllConnections();
    return new Promise((resolve) => {
      http.close(resolve);
    });
  };
  return server;
}

/** Sends the first bytes of a file, then breaks the connection. */
export function breakAfter(response, bytes, from, size) {
  response.writeHead(from > 0 ? 206 : 200, {
    "content-length": bytes.length - from,
    ...(from > 0 && { "content-range": `bytes ${from}-${bytes.length - 1}/${bytes.length}` }),
  });
  response.write(bytes.subarray(from, from + size), () => setTimeout(() => response.destroy(), 5));
}
