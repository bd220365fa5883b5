// The exports of a runtime module over no model at all: ids are bytes, and a request is answered
// with its own prompt in a circle. Some bytes cause trouble. What it holds is counted.

import { createHash } from "node:crypto";

const encoder = new TextEncoder();
const decoder = new TextDecoder();

export const FAILS = 1; // this byte in a prompt fails in the step
export const TRAPS = 2; // and this one crashes the module
export const VOCAB = 260;
export const WINDOW = 100;
const STATUS = {
  tooSmall: 2,
  tooLong: 3,
  notFound: 4,
  unsupported: 5,
  busy: 6,
  grammar: 8,
  kernel: 60,
};

/** Exports, and `state`, which tells what happened. `pages`: memory at the beginning. */
export function fakeWasm({ pages = 4, abi = 2, bundleStatus = 0 } = {}) {
  const memory = new WebAssembly.Memory({ initial: pages, maximum: 4096 });
  const state = {
    live: new Map(),
    files: new Map(),
    handles: new Set(),
    submitted: [],
    cancelled: [],
    options: null,
    steps: 0,
    maxBatch: 0,
    pieces: [],
  };
  let top = 64;
  let nextHandle = 1000;
  let lastError = "";
  let pollAt = 0;
  let errorAt = 0;
  let infoAt = 0;
  let requests = [];
  const events = [];
  let nextId = 1;
  const parsers = new Map();

  const bytes = (at, size) => new Uint8Array(memory.buffer, at >>> 0, size);
  const view = () => new DataView(memory.buffer);
  const take = (size) => {
    const at = Math.ceil(top / 64) * 64;
    const pages = Math.ceil((at + size - memory.buffer.byteLength) / 65536);
    if (pages > 0) {
      try {
        memory.grow(pages);
      } catch {
        return 0;
      }
    }
    top = at + size;
    return at;
  };
  const string = (at) => {
    const all = new Uint8Array(memory.buffer);
    return decoder.decode(all.subarray(at, all.indexOf(0, at)));
  };
  const keep = (text) => {
    const data = encoder.encode(`${text}\0`);
    const at = take(data.length);
    bytes(at, data.length).set(data);
    return at;
  };
  const fail = (status, text) => {
    lastError = text;
    return status;
  };
  const output = (data, out, capacity, size, width = 1) => {
    view().setUint32(size, data.length / width, true);
    if (data.length / width > capacity) return fail(STATUS.tooSmall, "too small");
    bytes(out, data.length).set(data);
    return 0;
  };
  const words = (values) => new Uint8Array(Int32Array.from(values).buffer);
  const handle = (out) => {
    const made = nextHandle++;
    state.handles.add(made);
    view().setUint32(out, made, true);
    return made;
  };
  const wantHandle = (it) => {
    if (!state.handles.has(it)) throw new Error(`handle ${it} is not open`);
  };

  function tokenize(text, bos) {
    const mark = text.indexOf("ECHO:");
    if (mark < 0) return [...(bos ? [256] : []), ...encoder.encode(text)];
    // The conversation is JSON: what is behind the mark, to the end of that JSON text.
    const rest = text.slice(mark + 5);
    const end = rest.search(/(?<!\\)(?:\\\\)*"/);
    return [...encoder.encode(end < 0 ? rest : JSON.parse(`"${rest.slice(0, end)}"`))];
  }

  function finish(request, reason, stop = null) {
    request.ended = true;
    events.push({
      kind: "done",
      request_id: request.id,
      choice: request.choice,
      token_id: 0,
      finish_reason: reason,
      status: 0,
      text: request.text.decode(),
      logprob: 0,
      top_logprobs: [],
      stop_string: stop,
      prompt_tokens: request.ids.length,
      cached_tokens: 1,
      completion_tokens: request.made,
      queue_seconds: 0.25,
      first_token_seconds: 0.5,
      total_seconds: 1 + request.choice,
    });
  }

  function advance(request) {
    if (request.cancelled) {
      finish(request, "cancel");
      return;
    }
    const { ids } = request;
    if (ids.includes(TRAPS)) throw new WebAssembly.RuntimeError("unreachable");
    if (ids.includes(FAILS)) {
      request.ended = true;
      for (const other of requests) if (other.id === request.id) other.ended = true;
      events.push({
        kind: "error",
        request_id: request.id,
        choice: 0,
        status: STATUS.kernel,
        text: "the kernel failed\nwhy: it was told to",
        top_logprobs: [],
      });
      return;
    }
    const token = ids[(request.made + request.choice) % ids.length];
    request.made += 1;
    const text = request.text.decode(Uint8Array.of(token), { stream: true });
    const stop = request.stop.find((it) => it === text);
    if (stop !== undefined) {
      finish(request, "stop", stop);
      return;
    }
    events.push({
      kind: "token",
      request_id: request.id,
      choice: request.choice,
      token_id: token,
      text,
      logprob: -token / 64,
      finish_reason: null,
      status: 0,
      stop_string: null,
      top_logprobs: Array.from({ length: request.top_logprobs }, (_, i) => ({
        token_id: token + i,
        logprob: i === 3 ? -9e9 : -token / 64 - i,
      })),
    });
    if (request.made === ids.length && !request.ignore_eos) finish(request, "stop");
    else if (request.made === request.limit) finish(request, "length");
  }

  const exports = {
    memory,
    malloc(wide) {
      const size = wide >>> 0; // an argument has 32 bits
      const at = take(size);
      if (at) state.live.set(at, size);
      return at;
    },
    free(at) {
      if (at && !state.live.delete(at)) throw new Error(`free of ${at}`);
    },
    mlcb_abi_version: () => abi,
    mlcb_last_error: () => (errorAt = keep(lastError)),
    mlcb_web_file(path, wide) {
      const size = wide >>> 0;
      const at = take(Math.max(1, size));
      if (at) state.files.set(string(path), { at, size });
      else lastError = "no memory";
      return at;
    },
    mlcb_web_file_remove: (path) => (state.files.delete(string(path)) ? 0 : STATUS.notFound),
    mlcb_web_sha256(data, size, out) {
      bytes(out, 32).set(createHash("sha256").update(bytes(data, size)).digest());
    },
    mlcb_bundle_open(path, options, out) {
      if (bundleStatus) return fail(bundleStatus, "a file is malformed\nwhy: it was told to");
      if (!state.files.has(`${string(path)}/bundle.json`)) return fail(20, "no bundle here");
      handle(out);
      return 0;
    },
    mlcb_bundle_close: (it) => {
      wantHandle(it);
      state.handles.delete(it);
    },
    mlcb_tokenize(bundle, text, size, flags, ids, capacity, count) {
      wantHandle(bundle);
      return output(
        words(tokenize(decoder.decode(bytes(text, size)), flags & 2)),
        ids,
        capacity,
        count,
        4,
      );
    },
    mlcb_detokenize(bundle, ids, count, flags, text, capacity, size) {
      wantHandle(bundle);
      const given = new Int32Array(bytes(ids, 4 * count).slice().buffer);
      // Without special tokens twenty times over: more than a caller's first guess.
      const data = Array.from(given).flatMap((id) => Array(flags & 4 ? 1 : 20).fill(id & 255));
      return output(Uint8Array.from(data), text, capacity, size);
    },
    mlcb_apply_chat_template(bundle, conversation, text, capacity, size) {
      wantHandle(bundle);
      const given = string(conversation);
      if (given.includes("REFUSE")) return fail(1, "the template says: no");
      if (given.includes("NOTOOLS")) return fail(5, "the template has no place for tools");
      return output(encoder.encode(given), text, capacity, size);
    },
    mlcb_grammar_check(bundle, kind, text) {
      wantHandle(bundle);
      if (text && string(text).includes("bad"))
        return fail(STATUS.grammar, "bad is not good\nwhy: character 1");
      return 0;
    },
    mlcb_tool_grammar(bundle, tools, choice, parallel, text, capacity, size) {
      const made = `${parallel} ${string(choice)} ${string(tools)}`;
      return output(encoder.encode(made), text, capacity, size);
    },
    mlcb_output_parser_create(bundle, options, out) {
      wantHandle(bundle);
      const { tools, reasoning, prompt } = JSON.parse(string(options));
      parsers.set(handle(out), { tools, reasoning, prompt, state: "content", calls: 0, name: "" });
      return 0;
    },
    mlcb_output_parser_destroy(it) {
      wantHandle(it);
      state.handles.delete(it);
      parsers.delete(it);
    },
    mlcb_output_parser_push(it, text, size, last, out) {
      wantHandle(it);
      state.pieces.push(decoder.decode(bytes(text, size)));
      view().setUint32(
        out,
        keep(JSON.stringify(parse(parsers.get(it), state.pieces.at(-1)))),
        true,
      );
      return 0;
    },
    mlcb_web_engine_create(bundle, options, out) {
      wantHandle(bundle);
      state.options = JSON.parse(string(options));
      if (state.options.kv_tokens === 7) return fail(41, "no memory for 7 tokens");
      if (state.options.max_batch_size > 8)
        return fail(1, "max_batch_size is too large; lower max_batch_size");
      handle(out);
      return 0;
    },
    mlcb_engine_destroy: (it) => {
      wantHandle(it);
      state.handles.delete(it);
    },
    mlcb_engine_info: () =>
      (infoAt ||= keep(JSON.stringify({ variant: state.options.variant, threads: 1 }))),
    mlcb_web_submit(engine, text, out) {
      wantHandle(engine);
      const given = JSON.parse(string(text));
      state.submitted.push(given);
      if (given.token_ids.length > WINDOW)
        return fail(STATUS.tooLong, `${given.token_ids.length} tokens do not fit ${WINDOW}`);
      const waiting = requests.filter((it) => !it.ended).length;
      if (state.options.max_waiting && waiting >= state.options.max_waiting)
        return fail(STATUS.busy, "the queue is full");
      const id = nextId++;
      for (let choice = 0; choice < given.n; ++choice) {
        requests.push({
          ...given,
          id,
          choice,
          ids: given.token_ids,
          made: 0,
          ended: false,
          limit: given.max_tokens || WINDOW,
          text: new TextDecoder(),
        });
      }
      view().setBigUint64(out, BigInt(id), true);
      return 0;
    },
    mlcb_request_cancel(engine, id) {
      if (typeof id !== "bigint") throw new TypeError("an id has 64 bits");
      state.cancelled.push(Number(id));
      const found = requests.filter((it) => it.id === Number(id) && !it.ended);
      for (const it of found) it.cancelled = true;
      return found.length ? 0 : fail(STATUS.notFound, "no such request");
    },
    mlcb_engine_step(engine, busy) {
      wantHandle(engine);
      state.steps += 1;
      state.maxBatch = Math.max(state.maxBatch, new Set(requests.map((it) => it.id)).size);
      for (const it of requests) if (!it.ended) advance(it);
      requests = requests.filter((it) => !it.ended);
      view().setUint32(busy, requests.length ? 1 : 0, true);
      return 0;
    },
    mlcb_web_poll: () => (events.length ? (pollAt = keep(JSON.stringify(events.shift()))) : 0),
    mlcb_engine_metrics(engine, format, text, capacity, size) {
      const made =
        string(format) === "json"
          ? JSON.stringify({ steps: state.steps, pad: "x".repeat(1 << 15) })
          : "# TYPE fake gauge\n";
      return output(encoder.encode(made), text, capacity, size);
    },
    mlcb_engine_clear_cache: () => {
      state.cleared = true;
      return 0;
    },
    mlcb_engine_logits(engine, ids, count, out, capacity) {
      if (capacity !== count * VOCAB) return fail(STATUS.tooSmall, "too small");
      const given = new Int32Array(bytes(ids, 4 * count).slice().buffer);
      new Float32Array(memory.buffer, out, capacity).forEach((_, i, all) => {
        all[i] = given[Math.floor(i / VOCAB)] + (i % VOCAB) / 1000;
      });
      return 0;
    },
  };
  return { exports, state };
}

// A call is [name(arguments)], reasoning is {between braces}.
export function parse(parser, text) {
  const deltas = [];
  for (const c of text) {
    const { state, calls: index } = parser;
    if (state === "name" && c === "(") {
      deltas.push({ tool_call: { index, name: parser.name, arguments: "" } });
      parser.state = "arguments";
    } else if (state === "name") parser.name += c;
    else if (state === "arguments" && c === ")") parser.state = "end";
    else if (state === "arguments") deltas.push({ tool_call: { index, arguments: c } });
    else if (state === "end") {
      parser.calls += 1;
      parser.state = "content";
    } else if (state === "reasoning" && c === "}") parser.state = "content";
    else if (state === "reasoning") deltas.push({ reasoning_content: c });
    else if (c === "[" && parser.tools) Object.assign(parser, { state: "name", name: "" });
    else if (c === "{" && parser.reasoning) parser.state = "reasoning";
    else deltas.push({ content: c });
  }
  return deltas;
}
