// A proof in a real browser: node prove_browser.mjs BUNDLE [CHROMIUM]. It loads the bundle in a
// worker and on the page, breaks the connection, damages what is kept, cancels, crashes.

import assert from "node:assert/strict";
import { createReadStream, readFileSync, statSync } from "node:fs";
import { createServer } from "node:http";
import { extname, join, normalize } from "node:path";
import { fileURLToPath } from "node:url";

import { openPage } from "./chromium.mjs";

const [bundle, chromium = "chromium"] = process.argv.slice(2);
const web = fileURLToPath(new URL("../../mlcbuild/runtime_stub/platform/web", import.meta.url));
const manifest = JSON.parse(readFileSync(join(bundle, "bundle.json"), "utf8"));
const shard = manifest.files
  .filter((file) => file.path.startsWith("params/"))
  .reduce((a, b) => (a.size > b.size ? a : b));
const types = {
  ".js": "text/javascript",
  ".html": "text/html",
  ".json": "application/json",
  ".wasm": "application/wasm",
};

let asked = [];
let fault = null; // {path, after}: break that file after so many bytes
const server = createServer((request, response) => {
  const path = decodeURIComponent(new URL(request.url, "http://x").pathname).slice(1);
  if (path === "") {
    response
      .writeHead(200, { "content-type": "text/html" })
      .end("<!doctype html><title>mlcb</title>");
    return;
  }
  const [root, ...rest] = path.split("/");
  const file = normalize(join(root === "bundle" ? bundle : web, ...rest));
  const found = statSync(file, { throwIfNoEntry: false });
  if (!found?.isFile()) {
    response.writeHead(404).end();
    return;
  }
  const { size } = found;
  const range = /^bytes=(\d+)-$/.exec(request.headers.range ?? "");
  const from = range ? Number(range[1]) : 0;
  if (root === "bundle") asked.push([rest.join("/"), from]);
  response.writeHead(range ? 206 : 200, {
    "content-type": types[extname(file)] ?? "application/octet-stream",
    "content-length": size - from,
    "access-control-allow-origin": "*",
    ...(range && { "content-range": `bytes ${from}-${size - 1}/${size}` }),
  });
  const broken = fault?.path === rest.join("/") && from < fault.after;
  const stream = createReadStream(file, { start: from, ...(broken && { end: fault.after - 1 }) });
  if (!broken) {
    stream.pipe(response);
    return;
  }
  stream.pipe(response, { end: false });
  stream.on("end", () => setTimeout(() => response.destroy(), 100));
});
await new Promise((resolve) => {
  server.listen(0, "127.0.0.1", resolve);
});
const base = `http://127.0.0.1:${server.address().port}/`;
const page = await openPage(chromium, base);

/** Loads in the page as `globalThis.engine`. */
const load = (options = {}) =>
  page.evaluate(async (given) => {
    const { Engine } = await import("/web/mlcb.js");
    globalThis.Engine = Engine;
    globalThis.told = [];
    globalThis.engine = await Engine.load("bundle/", {
      ...given,
      onProgress: (it) => told.push(it),
    });
    return {
      info: engine.info,
      warnings: engine.warnings,
      told: [...new Set(told.map((it) => it.phase))],
      last: told.at(-1),
    };
  }, options);
const unload = () => page.evaluate(() => engine.unload());
const greedy = { temperature: 0, max_tokens: 16 };
const messages = [{ role: "user", content: "What is the capital of France?" }];

async function step(name, work) {
  asked = [];
  const start = performance.now();
  await work();
  console.log(`ok ${name} (${Math.round(performance.now() - start)} ms)`);
}

let text;
try {
  await step("a worker, a connection that breaks", async () => {
    fault = { path: shard.path, after: Math.floor(shard.size * 0.7) };
    const { info, warnings, told, last } = await load();
    fault = null;
    assert.deepEqual(warnings, []);
    assert.deepEqual(told, ["manifest", "download", "compile", "open"]);
    assert.equal(last.loadedBytes, last.totalBytes);
    const parts = asked.filter(([path]) => path === shard.path).map(([, from]) => from);
    assert.deepEqual(parts, [0, Math.floor(shard.size * 0.7)]);
    assert.ok(!asked.some(([path]) => path === manifest.tokenizer), "tokenizer.json is not needed");
    console.log(`   ${JSON.stringify(info)}`);
  });

  await step("a chat", async () => {
    const answer = await page.evaluate((body) => engine.chat.completions.create(body), {
      messages,
      ...greedy,
      logprobs: true,
      top_logprobs: 2,
    });
    text = answer.choices[0].message.content;
    console.log(
      `   ${JSON.stringify(text)} ${JSON.stringify(answer.usage)} ${JSON.stringify(answer.timings)}`,
    );
    assert.ok(text.length > 0);
    assert.equal(answer.choices[0].logprobs.content.length, answer.usage.completion_tokens);
  });

  await step("a stream is the same text, piece by piece", async () => {
    const pieces = await page.evaluate(
      async (body) => {
        const found = [];
        for await (const chunk of await engine.chat.completions.create(body))
          found.push(chunk.choices[0].delta.content ?? "");
        return found;
      },
      { messages, ...greedy, stream: true },
    );
    assert.equal(pieces.join(""), text);
    assert.ok(pieces.length > 3);
  });

  await step("several at once", async () => {
    const texts = await page.evaluate(
      async (body) => {
        const answers = await Promise.all(
          Array.from({ length: 6 }, () => engine.chat.completions.create(body)),
        );
        return answers.map((answer) => answer.choices[0].message.content);
      },
      { messages, ...greedy },
    );
    assert.deepEqual(new Set(texts), new Set([text]));
  });

  await step("a JSON schema binds", async () => {
    const schema = {
      type: "object",
      properties: { ok: { type: "boolean" }, n: { type: "integer", minimum: 0, maximum: 9 } },
      required: ["ok", "n"],
      additionalProperties: false,
    };
    const answer = await page.evaluate((body) => engine.chat.completions.create(body), {
      messages,
      temperature: 1,
      seed: 4,
      max_tokens: 200,
      response_format: { type: "json_schema", json_schema: { name: "x", schema } },
    });
    const { finish_reason: reason, message } = answer.choices[0];
    console.log(`   ${JSON.stringify(message.content)} ${reason}`);
    if (reason === "stop") assert.equal(typeof JSON.parse(message.content).ok, "boolean");
  });

  await step("aborting, leaving a loop", async () => {
    const found = await page.evaluate(
      async (given) => {
        const body = { ...given, max_tokens: 200, ignore_eos: true };
        const controller = new AbortController();
        const whole = engine.chat.completions.create(body, { signal: controller.signal });
        setTimeout(() => controller.abort(), 5);
        const reason = await whole.then(
          () => "it ended",
          (error) => error.name,
        );
        let seen = 0;
        for await (const chunk of await engine.chat.completions.create({ ...body, stream: true })) {
          if (chunk.choices.length && ++seen === 3) break;
        }
        const after = await engine.chat.completions.create({ ...given, max_tokens: 4 });
        const { requests } = await engine.metrics();
        return { reason, seen, after: after.choices.length, requests };
      },
      { messages, temperature: 0 },
    );
    console.log(`   ${JSON.stringify(found)}`);
    assert.equal(found.reason, "AbortError");
    assert.equal(found.seen, 3);
    assert.equal(found.after, 1);
  });

  await step("errors keep their class and fields over the worker", async () => {
    const found = await page.evaluate(
      async (body) => {
        const { MlcbError } = await import("/web/mlcb.js");
        const error = await engine.chat.completions.create(body).catch((it) => it);
        return [error instanceof MlcbError, error.status, error.code, error.param];
      },
      { messages: [{ role: "user", content: "word ".repeat(20000) }] },
    );
    assert.deepEqual(found, [true, 400, "context_length_exceeded", "messages"]);
  });
  await unload();

  await step("the second load fetches bundle.json only", async () => {
    const { warnings } = await load();
    assert.deepEqual(
      asked.map(([path]) => path),
      ["bundle.json"],
    );
    assert.deepEqual(warnings, []);
    await unload();
  });

  await step("what is damaged in the cache is fetched again, alone", async () => {
    await page.evaluate(async (name) => {
      const source = `onmessage = async () => {
        const root = await navigator.storage.getDirectory();
        const folder = await root.getDirectoryHandle("mlcb-cache");
        const handle = await (await folder.getFileHandle("${name}")).createSyncAccessHandle();
        const byte = new Uint8Array(1);
        handle.read(byte, { at: 1000 });
        byte[0] ^= 1;
        handle.write(byte, { at: 1000 });
        handle.close();
        postMessage("done");
      };`;
      const worker = new Worker(URL.createObjectURL(new Blob([source])));
      await new Promise((resolve) => {
        worker.onmessage = resolve;
        worker.postMessage(0);
      });
      worker.terminate();
    }, shard.sha256);
    const { warnings } = await load();
    assert.deepEqual(
      asked.map(([path]) => path),
      ["bundle.json", shard.path],
    );
    assert.match(warnings[0], /was damaged and is fetched again/);
    const answer = await page.evaluate((body) => engine.chat.completions.create(body), {
      messages,
      ...greedy,
    });
    assert.equal(answer.choices[0].message.content, text);
    await unload();
  });

  await step("a load that is aborted goes on later, in the worker's file system", async () => {
    await page.evaluate(() => Engine.clearCache());
    fault = { path: shard.path, after: Math.floor(shard.size * 0.6) };
    const reason = await page.evaluate(async (least) => {
      const controller = new AbortController();
      let timer = 0;
      const onProgress = ({ file }) => {
        if (file === least && timer === 0) timer = setTimeout(() => controller.abort(), 400);
      };
      return Engine.load("bundle/", { signal: controller.signal, onProgress }).then(
        (it) => it.unload().then(() => "it loaded"),
        (error) => error.name,
      );
    }, shard.path);
    fault = null;
    asked = [];
    const { warnings } = await load();
    console.log(`   ${reason}, then ${JSON.stringify(asked)}`);
    assert.deepEqual(warnings, []);
    await unload();
  });

  await step("without a server and with nothing kept: an error", async () => {
    const { warnings } = await page.evaluate(async () => {
      const refused = globalThis.fetch;
      globalThis.fetch = async () => {
        throw new TypeError("offline");
      };
      const loaded = await Engine.load("bundle/", { worker: false, cache: "cache-api" }).catch(
        (error) => ({ warnings: [error.code] }),
      );
      globalThis.fetch = refused;
      return { warnings: loaded.warnings };
    });
    assert.deepEqual(warnings, ["network_error"]); // the other cache holds nothing yet
  });

  await step("on the page, with the Cache API", async () => {
    await load({ worker: false });
    const first = asked.length;
    assert.ok(first > 5);
    const answer = await page.evaluate((body) => engine.chat.completions.create(body), {
      messages,
      ...greedy,
    });
    assert.equal(answer.choices[0].message.content, text);
    await unload();
    asked = [];
    await load({ worker: false });
    assert.deepEqual(
      asked.map(([path]) => path),
      ["bundle.json"],
    );
    await unload();
    const warnings = await page.evaluate(async () => {
      const before = globalThis.fetch;
      globalThis.fetch = async () => {
        throw new TypeError("offline");
      };
      const loaded = await Engine.load("bundle/", { worker: false });
      globalThis.fetch = before;
      await loaded.unload();
      return loaded.warnings;
    });
    assert.match(warnings[0], /^the server does not answer/);
  });

  await step("a second tab shares what is kept", async () => {
    const other = await page.open(`${base}?second`);
    asked = [];
    const found = await other.evaluate(async () => {
      const { Engine: Loaded } = await import("/web/mlcb.js");
      const engine = await Loaded.load("/bundle/");
      const tokens = await engine.tokenize("hello");
      await engine.unload();
      return tokens.length;
    });
    assert.ok(found > 0);
    assert.deepEqual(
      asked.map(([path]) => path),
      ["bundle.json"],
    );
    await other.close();
  });

  await step("module and bundle of another origin, with a connection that breaks", async () => {
    fault = { path: shard.path, after: Math.floor(shard.size * 0.3) };
    const found = await page.evaluate(
      async (other) => {
        const { Engine: Foreign } = await import(`${other}web/mlcb.js`);
        const engine = await Foreign.load(`${other}bundle/bundle.json`);
        const tokens = await engine.tokenize("hello");
        await engine.unload();
        await Foreign.clearCache(`${other}bundle/`);
        return [engine.warnings, tokens.length];
      },
      base.replace("127.0.0.1", "localhost"),
    );
    fault = null;
    assert.deepEqual(found[0], []);
  });

  await step("clearCache forgets", async () => {
    const left = await page.evaluate(async () => {
      await Engine.clearCache("bundle/");
      const names = [];
      const root = await navigator.storage.getDirectory();
      for await (const name of (await root.getDirectoryHandle("mlcb-cache")).keys())
        names.push(name);
      const keys = await (await caches.open("mlcb-cache")).keys();
      return [...names, ...keys.map((it) => it.url)];
    });
    assert.deepEqual(left, []);
  });

  await step("a worker whose script is not there says so", async () => {
    const found = await page.evaluate(async () => {
      const error = await Engine.load("bundle/", {
        worker: () => new Worker("/nothing.js", { type: "module" }),
      }).catch((it) => it);
      return [error.code, error.message];
    });
    assert.equal(found[0], "worker_crashed");
    console.log(`   ${found[1]}`);
  });
  assert.deepEqual(page.logs, []);
} finally {
  if (page.logs.length) console.log(page.logs.join("\n"));
  await page.quit();
  server.closeAllConnections();
  server.close();
}
