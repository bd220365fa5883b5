// Runs a bundle for WebAssembly in node, with the JavaScript that the bundle ships: answers lines
// of JSON, {"op": ..., ...}, with {"result": ...} or {"status": ..., "message": ...}. The other
// side is mlcbuild/bundle/node.py.
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

const ROOT = "/bundle";

let bundle, engine, NativeEngine;

// What the runtime itself reports, for Python to make its error of.
class RuntimeFailure extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

const base64 = (data) => Buffer.from(data.buffer, data.byteOffset, data.byteLength).toString("base64");

async function open({ folder, modules, files, verify_full: verifyFull }) {
  const shipped = (name) => import(pathToFileURL(join(folder, "platform", "web", name)).href);
  const { Runtime, instantiate } = await shipped("runtime.js");
  const native = await shipped("native.js");
  const sources = modules.map((name) => ({ name, source: readFileSync(join(folder, name)) }));
  const usable = sources.find(({ source }) => WebAssembly.validate(source));
  if (usable === undefined) throw new Error(`this engine takes none of ${modules.join(", ")}`);
  const exports = await instantiate(await WebAssembly.compile(usable.source));
  const runtime = new (class extends Runtime {
    lastError(status) {
      return new RuntimeFailure(status, this.string(this.call("mlcb_last_error")));
    }
  })(exports);
  for (const name of files) {
    const content = readFileSync(join(folder, name));
    const address = runtime.makeFile(`${ROOT}/${name}`, content.length);
    runtime.bytes(address, content.length).set(content);
  }
  if (verifyFull) {
    runtime.scope((memory) => {
      const options = memory.bytes(new Uint8Array(Int32Array.of(8, 1).buffer)); // mlcb_bundle_options
      const out = memory.space(4);
      runtime.check("mlcb_bundle_open", memory.string(ROOT), options, out);
      runtime.call("mlcb_bundle_close", runtime.word(out));
    });
  }
  bundle = new native.NativeBundle(runtime, ROOT);
  NativeEngine = native.NativeEngine;
  return usable.name;
}

// The conversation is JSON text: read and written here, its numbers would change.
function renderText(conversation) {
  const { runtime, handle } = bundle;
  const text = runtime.fill(4096, (buffer, capacity, size, memory) =>
    runtime.call("mlcb_apply_chat_template", handle, memory.string(conversation), buffer, capacity, size),
  );
  return new TextDecoder("utf-8", { ignoreBOM: true }).decode(text);
}

const operations = {
  open,
  tokenize: ({ text, special, bos }) => bundle.tokenize(text, { special, bos }),
  detokenize: ({ ids, special, inside }) => base64(bundle.detokenize(ids, { special, inside })),
  render: ({ conversation }) => renderText(conversation),
  engine: ({ options }) => {
    engine = new NativeEngine(bundle, options);
    return engine.info();
  },
  start: () => bundle.runtime.check("mlcb_engine_start", engine.handle),
  destroy: () => engine.close(),
  logits: ({ ids, vocab_size: vocabSize }) => base64(engine.logits(ids, vocabSize)),
  submit: ({ request }) => Number(engine.submit(request)),
  step: () => engine.step(),
  poll: () => engine.poll(),
  metrics: () => JSON.parse(engine.metrics("json")),
};

for await (const line of createInterface({ input: process.stdin })) {
  const { op, ...given } = JSON.parse(line);
  let answer;
  try {
    answer = { result: (await operations[op](given)) ?? null };
  } catch (error) {
    const known = error instanceof RuntimeFailure;
    answer = { status: known ? error.status : null, message: known ? error.message : error.stack };
  }
  process.stdout.write(`${JSON.stringify(answer)}\n`);
}
