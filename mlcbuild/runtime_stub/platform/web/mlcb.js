// A model bundle in a browser or in node, with the calls of OpenAI's client.
//
//   import { Engine } from "./platform/web/mlcb.js";
//   const engine = await Engine.load("https://example.org/models/smollm2/");
//   const answer = await engine.chat.completions.create({ messages });

import { LocalBackend, WorkerBackend } from "./backend.js";
import { clearCaches } from "./cache.js";
import { MlcbError, abortReason, invalid } from "./errors.js";
import { hostCapabilities } from "./host.js";
import { readOptions } from "./options.js";
import { ChatRequest, TextRequest, parseRequest } from "./protocol.js";
import { openSource } from "./source.js";
import { ChunkStream } from "./stream.js";

export { MlcbError, hostCapabilities };

/** `create` of chats or of plain texts. */
class Completions {
  #backend;
  #kind;

  constructor(backend, kind) {
    this.#backend = backend;
    this.#kind = kind;
  }

  async create(body, { signal = null } = {}) {
    const request = parseRequest(this.#kind === "chat" ? ChatRequest : TextRequest, body);
    if (signal?.aborted) throw abortReason(signal);
    if (request.stream) {
      const stream = new ChunkStream();
      stream.attach(await this.#backend.start(this.#kind, request, stream.sink), signal);
      if (signal?.aborted) throw abortReason(signal);
      return stream;
    }
    return new Promise((resolve, reject) => {
      let cancel = () => {};
      const abort = () => {
        cancel();
        reject(abortReason(signal));
      };
      const finish = () => signal?.removeEventListener("abort", abort);
      signal?.addEventListener("abort", abort, { once: true });
      const sink = {
        done: (answer) => {
          finish();
          resolve(answer);
        },
        fail: (error) => {
          finish();
          reject(error);
        },
      };
      this.#backend.start(this.#kind, request, sink).then((stop) => {
        cancel = stop;
        if (signal?.aborted) stop();
      }, sink.fail);
    });
  }
}

const KEY = Symbol("Engine.load makes engines");

export class Engine {
  #backend;

  /** Loads a bundle: its URL, in node also its folder. */
  static async load(bundle, options = {}) {
    return Engine.#load(bundle, options, {});
  }

  /** For tests: as load(), with parts of the world replaced. */
  static async loadWith(outside, bundle, options = {}) {
    return Engine.#load(bundle, options, outside);
  }

  static async #load(bundle, options, outside) {
    const { load, worker, onProgress, signal } = readOptions(options);
    // What is no bundle's address is told before a worker starts, which knows no page to start
    // from.
    const { address, location } = await openSource(bundle);
    if (signal?.aborted) throw abortReason(signal);
    const backend =
      worker === false
        ? await LocalBackend.load(bundle, load, { onProgress, signal, outside })
        : await WorkerBackend.load(String(address ?? location), load, { onProgress, signal, worker });
    return new Engine(KEY, backend);
  }

  /** Forgets what browsers keep of a bundle, or without a URL of all bundles. */
  static async clearCache(bundle = null) {
    if (bundle === null) return clearCaches();
    const source = await openSource(bundle);
    return source.isRemote ? clearCaches(source.location.href) : undefined;
  }

  constructor(key, backend) {
    if (key !== KEY) throw new TypeError("use await Engine.load(...)");
    this.#backend = backend;
    this.chat = { completions: new Completions(backend, "chat") };
    this.completions = new Completions(backend, "text");
    this.models = {
      list: async () => ({ object: "list", data: [this.#model()] }),
      retrieve: async (name) => {
        if (name === this.modelName) return this.#model();
        throw new MlcbError(`there is no model ${name}; there is ${this.modelName}`, {
          status: 404,
          code: "model_not_found",
          param: "model",
        });
      },
    };
  }

  /** What the runtime chose: variant, activations, limits, memory in bytes. */
  get info() {
    return this.#backend.info;
  }

  /** The bundle's manifest, bundle.json. */
  get manifest() {
    return this.#backend.manifest;
  }

  get modelName() {
    return this.manifest.name;
  }

  /** Tokens that a prompt and its answer may have together. */
  get contextWindowSize() {
    return this.manifest.limits.context_window_size;
  }

  /** What went otherwise than wished while loading. */
  get warnings() {
    return this.#backend.warnings;
  }

  async tokenize(text, { special = true, bos = false } = {}) {
    if (typeof text !== "string") throw invalid(`expected a text, not ${typeof text}`);
    return this.#backend.ask("tokenize", text, { special, bos });
  }

  async detokenize(tokenIds, { special = false } = {}) {
    return this.#backend.ask("detokenize", ids(tokenIds), { special });
  }

  /** A conversation as the text that the model sees. */
  async renderChat(
    messages,
    { generationPrompt = true, tools, continueFinalMessage, now, variables } = {},
  ) {
    if (!Array.isArray(messages))
      throw invalid('messages are a list of {"role": ..., "content": ...}');
    return this.#backend.ask("renderChat", {
      messages,
      add_generation_prompt: generationPrompt,
      ...(tools !== undefined && { tools }),
      ...(continueFinalMessage && { continue_final_message: true }),
      ...(now !== undefined && { now }),
      ...(variables !== undefined && { variables }),
    });
  }

  /** What the engine has done and holds. */
  async metrics() {
    return this.#backend.ask("metrics");
  }

  /** The same figures as text for Prometheus. */
  async prometheusMetrics() {
    return this.#backend.ask("prometheusMetrics");
  }

  /** Forgets what the prefix cache keeps. */
  async clearPrefixCache() {
    return this.#backend.ask("clearPrefixCache");
  }

  /** Logits of every position: a Float32Array of [ids, vocabulary], row major. */
  async logits(tokenIds) {
    return this.#backend.ask("logits", ids(tokenIds));
  }

  /** Drops what runs and frees everything; a second call does nothing. */
  async unload() {
    await this.#backend.close();
  }

  #model() {
    return {
      id: this.modelName,
      object: "model",
      created: 0,
      owned_by: "mlcbuild",
      context_window_size: this.contextWindowSize,
    };
  }
}

function ids(given) {
  const list = Array.isArray(given) || ArrayBuffer.isView(given) ? Array.from(given) : null;
  if (!list?.every((id) => Number.isInteger(id) && id >= 0 && id < 2 ** 31)) {
    throw invalid("token ids are a list of integers");
  }
  return list;
}
