// Runs a bundle for WebAssembly in node: answers lines of JSON, {"op": ..., ...}, with
// {"result": ...} or {"status": ..., "message": ...}. mlcbuild/bundle/node.py is the other side.
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { createInterface } from "node:readline";

const ROOT = "/bundle";
const TOO_SMALL = 2;

let memory, call, bundle, engine;
const view = () => new DataView(memory.buffer);
const bytes = (address, size) => new Uint8Array(memory.buffer, address >>> 0, size);

class RuntimeFailure extends Error {
  constructor(status) {
    super(text(call.mlcb_last_error()));
    this.status = status;
  }
}

function text(address) {
  const all = new Uint8Array(memory.buffer, address >>> 0);
  return new TextDecoder().decode(all.subarray(0, all.indexOf(0)));
}

function allocate(size) {
  const address = call.malloc(Math.max(size, 8));
  if (address === 0) throw new Error(`no memory for ${size} bytes`);
  return address;
}

function check(status) {
  if (status !== 0) throw new RuntimeFailure(status);
}

// use(address, size) with data in the module's memory; data ends with a NUL that size leaves out.
function lend(data, use) {
  const address = allocate(data.length + 1);
  try {
    bytes(address, data.length).set(data);
    bytes(address + data.length, 1)[0] = 0;
    return use(address, data.length);
  } finally {
    call.free(address);
  }
}

const lendText = (string, use) => lend(new TextEncoder().encode(string), use);
const lendIds = (ids, use) => lend(new Uint8Array(Int32Array.from(ids).buffer), use);

// What the runtime writes to a place for a value of four or eight bytes.
function output(use, read) {
  const address = allocate(8);
  try {
    use(address);
    return read(address);
  } finally {
    call.free(address);
  }
}

const word = (use) => output(use, (address) => view().getUint32(address >>> 0, true));

// The items that write(address, capacity, size) fills in, however many they are.
function fill(write, itemBytes) {
  for (let capacity = 4096; ; ) {
    const address = allocate(capacity * itemBytes);
    try {
      let status;
      const size = word((place) => (status = write(address, capacity, place)));
      if (status !== TOO_SMALL || size <= capacity) {
        check(status);
        return bytes(address, size * itemBytes).slice();
      }
      capacity = size;
    } finally {
      call.free(address);
    }
  }
}

const base64 = (data) => Buffer.from(data.buffer, data.byteOffset, data.byteLength).toString("base64");

async function open({ folder, modules, files, verify_full }) {
  const sources = modules.map((name) => ({ name, source: readFileSync(join(folder, name)) }));
  const usable = sources.find(({ source }) => WebAssembly.validate(source));
  if (usable === undefined) throw new Error(`this engine takes none of ${modules.join(", ")}`);
  const { instance } = await WebAssembly.instantiate(usable.source, {
    env: { emscripten_notify_memory_growth() {} },
    wasi_snapshot_preview1: {
      clock_time_get(_clock, _precision, address) {
        const now = process.hrtime.bigint();
        view().setBigUint64(address >>> 0, now, true);
        return 0;
      },
      proc_exit(code) {
        throw new Error(`the module ended with ${code}`);
      },
    },
  });
  call = instance.exports;
  memory = call.memory;
  call._initialize();
  for (const name of files) {
    const content = readFileSync(join(folder, name));
    const address = lendText(`${ROOT}/${name}`, (path) => call.mlcb_web_file(path, content.length));
    if (address === 0) throw new Error(`no memory for ${name}`);
    bytes(address, content.length).set(content);
  }
  // struct mlcb_bundle_options
  const options = new Uint8Array(Int32Array.of(8, verify_full ? 1 : 0).buffer);
  bundle = word((out) =>
    lendText(ROOT, (path) => lend(options, (at) => check(call.mlcb_bundle_open(path, at, out)))),
  );
  return usable.name;
}

const operations = {
  open,
  tokenize: ({ text, flags }) => {
    const data = lendText(text, (at, size) =>
      fill((ids, capacity, count) => call.mlcb_tokenize(bundle, at, size, flags, ids, capacity, count), 4),
    );
    return Array.from(new Int32Array(data.buffer));
  },
  detokenize: ({ ids, flags }) =>
    base64(
      lendIds(ids, (at) =>
        fill((out, capacity, size) => call.mlcb_detokenize(bundle, at, ids.length, flags, out, capacity, size), 1),
      ),
    ),
  render: ({ conversation }) =>
    base64(
      lendText(conversation, (at) =>
        fill((out, capacity, size) => call.mlcb_apply_chat_template(bundle, at, out, capacity, size), 1),
      ),
    ),
  engine: ({ options }) => {
    engine = word((out) =>
      lendText(JSON.stringify(options), (at) => check(call.mlcb_web_engine_create(bundle, at, out))),
    );
    return JSON.parse(text(call.mlcb_engine_info(engine)));
  },
  destroy: () => {
    call.mlcb_engine_destroy(engine);
    return null;
  },
  logits: ({ ids, vocab_size }) => {
    const count = ids.length * vocab_size;
    return lend(new Uint8Array(count * 4), (out) => {
      lendIds(ids, (at) => check(call.mlcb_engine_logits(engine, at, ids.length, out, count)));
      return base64(bytes(out, count * 4));
    });
  },
  submit: ({ request }) =>
    output(
      (out) => lendText(JSON.stringify(request), (at) => check(call.mlcb_web_submit(engine, at, out))),
      (out) => Number(view().getBigUint64(out >>> 0, true)),
    ),
  step: () => word((busy) => check(call.mlcb_engine_step(engine, busy))) !== 0,
  poll: () => {
    const event = call.mlcb_web_poll(engine);
    return event === 0 ? null : JSON.parse(text(event));
  },
};

for await (const line of createInterface({ input: process.stdin })) {
  const { op, ...given } = JSON.parse(line);
  let answer;
  try {
    answer = { result: await operations[op](given) };
  } catch (error) {
    const known = error instanceof RuntimeFailure;
    answer = { status: known ? error.status : null, message: known ? error.message : String(error.stack) };
  }
  process.stdout.write(`${JSON.stringify(answer)}\n`);
}
