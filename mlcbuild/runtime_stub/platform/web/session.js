// An open bundle and the one loop that steps its engine, on whichever thread the module lives.

import { makeHeader } from "./answer.js";
import { ChatAssembler, ChatStream } from "./chat_answer.js";
import { MlcbError } from "./errors.js";
import { isNode } from "./host.js";
import { NativeBundle, NativeEngine, eventError } from "./native.js";
import { RequestBuilder } from "./prepare.js";
import { TextAssembler, TextStream } from "./text_answer.js";

const TOKENS_KEPT = 1 << 15;

/** Lets messages, timers and the page have their turn. */
const breathe = isNode
  ? () =>
      new Promise((resolve) => {
        setImmediate(resolve);
      })
  : (() => {
      // Timers are delayed by milliseconds when they nest, messages never.
      const waiting = [];
      const { port1, port2 } = new MessageChannel();
      port1.onmessage = () => waiting.shift()();
      return () =>
        new Promise((resolve) => {
          waiting.push(resolve);
          port2.postMessage(null);
        });
    })();

const decoder = new TextDecoder("utf-8", { ignoreBOM: true });

export class Session {
  #bundle;
  #engine;
  #builder;
  #jobs = new Map(); // request id of the runtime: {job, position}
  #running = false;
  #closed = false;
  #spelled = new Map();

  /** Opens the bundle at `path` of the runtime's files; `options` are mlcb_engine_options. */
  constructor(runtime, { path = "/bundle", manifest, chat, options }) {
    this.runtime = runtime;
    this.manifest = manifest;
    this.#bundle = new NativeBundle(runtime, path);
    try {
      this.#builder = new RequestBuilder(this.#bundle, manifest, chat);
      this.#engine = new NativeEngine(this.#bundle, options);
    } catch (error) {
      if (runtime.crash === null) this.#bundle.close();
      if (error.code === "invalid_value") error.code = "invalid_option";
      throw error;
    }
    this.info = this.#engine.info();
  }

  // ---- requests ---------------------------------------------------------------------------------

  /**
   * Starts a request that was parsed; kind: "chat" or "text". `sink.chunk(chunk)` takes chunks of
   * one that streams, `sink.done(answer)` its end (with the answer of one that does not),
   * `sink.fail(error)` what goes wrong later; what is wrong at once is thrown. Returns its cancel.
   */
  start(kind, request, sink) {
    this.#check();
    const isChat = kind === "chat";
    const prepared = isChat ? this.#builder.chat(request) : this.#builder.texts(request);
    const header = makeHeader(isChat ? "chatcmpl" : "cmpl", this.manifest);
    const maker = new (isChat ? ChatStream : TextStream)(prepared, header, (id) => this.#spell(id));
    const assembler = prepared.stream
      ? null
      : new (isChat ? ChatAssembler : TextAssembler)(prepared);
    const job = { maker, assembler, sink, ids: [] };
    try {
      prepared.natives.forEach((native, position) => {
        const id = this.#engine.submit(native);
        job.ids.push(id);
        this.#jobs.set(Number(id), { job, position });
      });
    } catch (error) {
      error.param ??=
        error.code === "context_length_exceeded" ? (isChat ? "messages" : "prompt") : null;
      this.#drop(job);
      throw error;
    }
    this.#wake();
    return () => this.#drop(job);
  }

  /** Forgets a job and cancels what of it still runs. */
  #drop(job) {
    try {
      for (const id of job.ids) {
        if (this.#jobs.delete(Number(id)) && this.runtime.crash === null && !this.#closed) {
          this.#engine.cancel(id);
        }
      }
    } finally {
      job.maker.close();
    }
  }

  #wake() {
    if (this.#running) return;
    this.#running = true;
    this.#run();
  }

  async #run() {
    try {
      // Requests that are made together begin together.
      await breathe();
      for (let busy = true; !this.#closed && (busy || this.#jobs.size > 0); await breathe()) {
        busy = this.#engine.step();
        this.#deliver();
        if (!busy && this.#jobs.size > 0) {
          throw new MlcbError("the runtime ended without ending its requests", {
            status: 500,
            code: "internal_error",
          });
        }
      }
    } catch (error) {
      this.#failAll(error);
    } finally {
      this.#running = false;
    }
  }

  #deliver() {
    for (let event = this.#engine.poll(); event !== null; event = this.#engine.poll()) {
      const known = this.#jobs.get(event.request_id);
      if (known === undefined) {
        if (event.request_id === 0) throw eventError(event); // of no request: the call failed
        continue; // it was cancelled
      }
      const { job, position } = known;
      try {
        if (event.kind === "error") throw eventError(event);
        this.#push(job, position, event);
      } catch (error) {
        this.#drop(job);
        job.sink.fail(error);
      }
    }
  }

  #push(job, position, event) {
    for (const chunk of job.maker.push(position, event)) {
      if (job.assembler === null) job.sink.chunk(chunk);
      else job.assembler.add(chunk);
    }
    if (!job.maker.done) return;
    this.#drop(job); // of a call that was to be the only one the rest still runs
    job.sink.done(job.assembler?.result());
  }

  #failAll(error) {
    const jobs = new Set([...this.#jobs.values()].map(({ job }) => job));
    for (const job of jobs) {
      try {
        this.#drop(job);
      } catch {
        // The caller is told of the first failure, not of what follows from it.
      }
    }
    this.#jobs.clear();
    for (const job of jobs) job.sink.fail(error);
  }

  // ---- text and figures -------------------------------------------------------------------------

  tokenize(text, options) {
    this.#check();
    return this.#bundle.tokenize(text, options);
  }

  detokenize(ids, options) {
    this.#check();
    return decoder.decode(this.#bundle.detokenize(ids, options));
  }

  renderChat(conversation) {
    this.#check();
    return this.#builder.renderChat(conversation);
  }

  metrics() {
    this.#check();
    return JSON.parse(this.#engine.metrics("json"));
  }

  prometheusMetrics() {
    this.#check();
    return this.#engine.metrics("prometheus");
  }

  clearPrefixCache() {
    this.#check();
    this.#engine.clearCache();
  }

  logits(ids) {
    this.#check();
    return this.#engine.logits(ids, this.manifest.model.vocab_size);
  }

  /** Drops what runs and gives the handles back; a second call does nothing. */
  close() {
    if (this.#closed) return;
    const error = closedError();
    this.#closed = true;
    this.#failAll(error);
    if (this.runtime.crash !== null) return;
    this.#engine.close();
    this.#bundle.close();
  }

  #check() {
    if (this.#closed) throw closedError();
    if (this.runtime.crash !== null) throw this.runtime.crash;
  }

  #spell(id) {
    let bytes = this.#spelled.get(id);
    if (bytes === undefined) {
      if (this.#spelled.size >= TOKENS_KEPT) this.#spelled.clear();
      // As it stands inside a text: a first token of some tokenizers would lose its space.
      bytes = this.#bundle.detokenize([id], { special: true, inside: true });
      this.#spelled.set(id, bytes);
    }
    return bytes;
  }
}

/** What calls after unload() get. */
export const closedError = () =>
  new MlcbError("the engine was unloaded", { code: "engine_closed" });
