// Handles of the runtime: an open bundle (text) and an engine over it (forward steps).

import { MlcbError, Status, statusError } from "./errors.js";

const TOKENIZE_SPECIAL = 1;
const TOKENIZE_BOS = 2;
const DETOKENIZE_SPECIAL = 4;
const DETOKENIZE_INSIDE = 8;

/** mlcb_grammar_kind. */
export const GrammarKind = Object.freeze({
  NONE: 0,
  JSON: 1,
  JSON_SCHEMA: 2,
  REGEX: 3,
  EBNF: 4,
  STRUCTURE: 5,
});

const encoder = new TextEncoder();
const decoder = new TextDecoder("utf-8", { ignoreBOM: true });

const bytesOf = (ids) => new Uint8Array(Int32Array.from(ids).buffer);

function noZero(text, name) {
  if (text?.includes("\0"))
    throw new MlcbError(`${name} holds a NUL character`, { code: "invalid_value" });
  return text;
}

// The runtime's JSON of a request. Numbers in JSON are exact up to 53 bits, a larger seed goes as
// text; there is no infinity, null is what stands for a forbidden token's.
function requestJson({ seed, ...rest }) {
  const value = seed ?? 0;
  const isExact = value <= Number.MAX_SAFE_INTEGER;
  return JSON.stringify({ seed: isExact ? Number(value) : String(value), ...rest });
}

/** An open bundle. */
export class NativeBundle {
  constructor(runtime, path) {
    this.runtime = runtime;
    this.handle = runtime.scope((memory) => {
      const out = memory.space(4);
      runtime.check("mlcb_bundle_open", memory.string(path), 0, out);
      return runtime.word(out);
    });
  }

  tokenize(text, { special = true, bos = false } = {}) {
    const data = encoder.encode(text);
    const flags = (special ? TOKENIZE_SPECIAL : 0) | (bos ? TOKENIZE_BOS : 0);
    // A token stands for a byte or more, BOS comes on top.
    const ids = this.runtime.fill(
      data.length + 8,
      (buffer, capacity, size, memory) =>
        this.runtime.call(
          "mlcb_tokenize",
          this.handle,
          memory.bytes(data),
          data.length,
          flags,
          buffer,
          capacity,
          size,
        ),
      4,
    );
    return Array.from(new Int32Array(ids.buffer));
  }

  /** The bytes of token ids; `inside`: as in the middle of a text. */
  detokenize(ids, { special = false, inside = false } = {}) {
    const flags = (special ? DETOKENIZE_SPECIAL : 0) | (inside ? DETOKENIZE_INSIDE : 0);
    return this.runtime.fill(16 * ids.length + 16, (buffer, capacity, size, memory) =>
      this.runtime.call(
        "mlcb_detokenize",
        this.handle,
        memory.bytes(bytesOf(ids)),
        ids.length,
        flags,
        buffer,
        capacity,
        size,
      ),
    );
  }

  /** The text of a conversation, an object as mlcb_apply_chat_template describes it. */
  renderChat(conversation) {
    const text = JSON.stringify(conversation);
    return this.#text(2 * text.length + 1024, (buffer, capacity, size, memory) =>
      this.runtime.call(
        "mlcb_apply_chat_template",
        this.handle,
        memory.string(text),
        buffer,
        capacity,
        size,
      ),
    );
  }

  checkGrammar(kind, text) {
    noZero(text, "the grammar");
    this.runtime.scope((memory) =>
      this.runtime.check("mlcb_grammar_check", this.handle, kind, memory.string(text)),
    );
  }

  toolGrammar(tools, choice, parallel) {
    const text = JSON.stringify(tools);
    return this.#text(4 * text.length + 1024, (buffer, capacity, size, memory) =>
      this.runtime.call(
        "mlcb_tool_grammar",
        this.handle,
        memory.string(text),
        memory.string(JSON.stringify(choice)),
        Number(parallel),
        buffer,
        capacity,
        size,
      ),
    );
  }

  outputParser(options) {
    return new OutputParser(this, options);
  }

  close() {
    this.runtime.call("mlcb_bundle_close", this.handle);
  }

  #text(capacity, call) {
    return decoder.decode(this.runtime.fill(capacity, call));
  }
}

/** Tells apart what a model writes: text, reasoning, tool calls. */
class OutputParser {
  #runtime;
  #handle;

  constructor({ runtime, handle }, options) {
    this.#runtime = runtime;
    this.#handle = runtime.scope((memory) => {
      const out = memory.space(4);
      runtime.check(
        "mlcb_output_parser_create",
        handle,
        memory.string(JSON.stringify(options)),
        out,
      );
      return runtime.word(out);
    });
  }

  /** The deltas of the next piece of text. */
  push(text, last = false) {
    const data = encoder.encode(text);
    return this.#runtime.scope((memory) => {
      const out = memory.space(4);
      this.#runtime.check(
        "mlcb_output_parser_push",
        this.#handle,
        memory.bytes(data),
        data.length,
        Number(last),
        out,
      );
      return JSON.parse(this.#runtime.string(this.#runtime.word(out)) || "[]");
    });
  }

  /** Frees the parser; a second call does nothing. */
  close() {
    if (this.#handle && this.#runtime.crash === null) {
      this.#runtime.call("mlcb_output_parser_destroy", this.#handle);
    }
    this.#handle = 0;
  }
}

/** An engine over an open bundle: one call here is one call of the C interface. */
export class NativeEngine {
  constructor(bundle, options) {
    const { runtime } = bundle;
    this.runtime = runtime;
    this.handle = runtime.scope((memory) => {
      const out = memory.space(4);
      runtime.check(
        "mlcb_web_engine_create",
        bundle.handle,
        memory.string(JSON.stringify(options)),
        out,
      );
      return runtime.word(out);
    });
  }

  info() {
    return JSON.parse(this.runtime.string(this.runtime.call("mlcb_engine_info", this.handle)));
  }

  /** Submits what the fields of mlcb_request_params say; the request's id. */
  submit(request) {
    for (const text of request.stop ?? []) noZero(text, "a stop string");
    noZero(request.grammar, "the grammar");
    return this.runtime.scope((memory) => {
      const out = memory.space(8);
      this.runtime.check("mlcb_web_submit", this.handle, memory.string(requestJson(request)), out);
      return this.runtime.longWord(out);
    });
  }

  /** Cancels a request; one that has ended already is fine. */
  cancel(id) {
    const status = this.runtime.call("mlcb_request_cancel", this.handle, id);
    if (status !== Status.OK && status !== Status.NOT_FOUND) throw this.runtime.lastError(status);
  }

  /** One step; whether requests remain. */
  step() {
    return this.runtime.scope((memory) => {
      const busy = memory.space(4);
      this.runtime.check("mlcb_engine_step", this.handle, busy);
      return this.runtime.word(busy) !== 0;
    });
  }

  /** The next event, or null. */
  poll() {
    const text = this.runtime.string(this.runtime.call("mlcb_web_poll", this.handle));
    return text === "" ? null : JSON.parse(text);
  }

  metrics(format) {
    return decoder.decode(
      this.runtime.fill(1 << 14, (buffer, capacity, size, memory) =>
        this.runtime.call(
          "mlcb_engine_metrics",
          this.handle,
          memory.string(format),
          buffer,
          capacity,
          size,
        ),
      ),
    );
  }

  clearCache() {
    this.runtime.check("mlcb_engine_clear_cache", this.handle);
  }

  /** Logits of every position: float32 [ids, vocab], row major. */
  logits(ids, vocab) {
    return this.runtime.scope((memory) => {
      const count = ids.length * vocab;
      const out = memory.space(4 * count);
      this.runtime.check(
        "mlcb_engine_logits",
        this.handle,
        memory.bytes(bytesOf(ids)),
        ids.length,
        out,
        count,
      );
      return new Float32Array(this.runtime.bytes(out, 4 * count).slice().buffer);
    });
  }

  close() {
    this.runtime.call("mlcb_engine_destroy", this.handle);
  }
}

/** The error of an event of kind "error". */
export const eventError = (event) => statusError(event.status, event.text);
