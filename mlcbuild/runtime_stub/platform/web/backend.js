// How an Engine reaches its session: on this thread, or on a worker's by messages. Both have
// start(kind, request, sink) -> promise of a cancel, ask(method, ...args) and close().

import { MlcbError, abortReason, invalid, unpackError } from "./errors.js";
import { isNode } from "./host.js";
import { loadSession } from "./load.js";
import { closedError } from "./session.js";

/** A session on this thread. */
export class LocalBackend {
  static async load(bundle, load, { onProgress, signal, outside }) {
    const tell = onProgress ?? undefined;
    const { session, warnings } = await loadSession(bundle, load, { tell, signal, ...outside });
    const backend = new LocalBackend();
    backend.#session = session;
    return Object.assign(backend, { warnings, manifest: session.manifest, info: session.info });
  }

  #session = null;

  async start(kind, request, sink) {
    return this.#open().start(kind, request, sink);
  }

  async ask(method, ...args) {
    return this.#open()[method](...args);
  }

  async close() {
    this.#session?.close();
    this.#session = null; // with it goes the module's memory
  }

  #open() {
    if (this.#session === null) throw closedError();
    return this.#session;
  }
}

const crashed = (reason) =>
  new MlcbError(`the worker of the engine failed: ${reason}`, {
    status: 500,
    code: "worker_crashed",
    hint: "load the engine again",
  });

// A browser starts no script of another origin as a worker, but one of the page's may import it.
function browserWorker() {
  try {
    // Bundlers look for exactly this expression.
    return new Worker(new URL("./worker.js", import.meta.url), { type: "module" });
  } catch (error) {
    if (error?.name !== "SecurityError") throw error;
    const source = `import ${JSON.stringify(new URL("./worker.js", import.meta.url).href)};`;
    const blob = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
    return new Worker(blob, { type: "module" });
  }
}

/** Either kind of worker behind one shape. */
async function openWorker(make, take, fail) {
  if (isNode) {
    const worker =
      make === true
        ? new (await import("node:worker_threads")).Worker(new URL("./worker.js", import.meta.url))
        : make();
    worker.on("message", take);
    worker.on("error", (error) => fail(error?.message ?? String(error)));
    worker.on("exit", (code) => fail(`it exited with code ${code}`));
    return worker;
  }
  const worker = make === true ? browserWorker() : make();
  await new Promise((resolve, reject) => {
    worker.addEventListener("message", (event) =>
      event.data.ready ? resolve() : take(event.data),
    );
    worker.addEventListener("error", (event) => {
      const reason = event.message || "its script did not load";
      fail(reason);
      reject(crashed(reason));
    });
    worker.addEventListener("messageerror", () => fail("a message could not be read"));
  });
  return worker;
}

/** A session in a worker. */
export class WorkerBackend {
  #worker = null;
  #calls = new Map(); // number: {resolve, reject, told}
  #next = 1;
  #failure = null;

  static async load(bundle, load, { onProgress, signal, worker }) {
    const backend = new WorkerBackend();
    backend.#worker = await openWorker(
      worker,
      (message) => backend.#take(message),
      (reason) => backend.#fail(crashed(reason)),
    );
    let mistake = null; // of onProgress: it ends the load, as it does without a worker
    const told = (progress) => {
      try {
        if (mistake === null) onProgress?.(progress);
      } catch (error) {
        mistake = error;
        stop();
      }
    };
    const { promise, stop } = backend.#call("load", { bundle, load }, told);
    const abort = () => stop();
    signal?.addEventListener("abort", abort, { once: true });
    try {
      if (signal?.aborted) throw abortReason(signal);
      const loaded = await promise;
      if (mistake !== null) throw mistake;
      return Object.assign(backend, loaded);
    } catch (error) {
      promise.catch(() => {});
      await backend.close();
      throw mistake ?? (signal?.aborted ? abortReason(signal) : error);
    } finally {
      signal?.removeEventListener("abort", abort);
    }
  }

  async start(kind, request, sink) {
    let begin;
    const begun = new Promise((resolve) => {
      begin = resolve;
    });
    const { promise, stop } = this.#call("start", { kind, request }, ({ chunk }) => {
      if (chunk === undefined) begin(true);
      else sink.chunk(chunk);
    });
    let started = false;
    const ended = promise.then(
      (value) => sink.done(value),
      (error) => {
        if (started) sink.fail(error);
        else throw error;
      },
    );
    started = await Promise.race([begun, ended]);
    started = true;
    ended.catch(() => {});
    return stop;
  }

  ask(method, ...args) {
    return this.#call("ask", { method, args }).promise;
  }

  async close() {
    this.#fail(closedError());
    await this.#worker?.terminate();
  }

  #call(name, args, told = null) {
    const call = this.#next++;
    const promise = new Promise((resolve, reject) => {
      if (this.#failure !== null) {
        reject(this.#failure);
        return;
      }
      try {
        this.#worker.postMessage({ call, name, args });
      } catch (error) {
        // a function or the like in what is to be sent
        reject(invalid(`what was given is no plain data: ${error.message}`));
        return;
      }
      this.#calls.set(call, { resolve, reject, told });
    });
    const stop = () => {
      if (this.#failure === null && this.#calls.has(call)) this.#worker.postMessage({ stop: call });
    };
    return { promise, stop };
  }

  #take({ call, value, error, told }) {
    const waiting = this.#calls.get(call);
    if (waiting === undefined) return;
    if (told !== undefined) {
      waiting.told?.(told);
      return;
    }
    this.#calls.delete(call);
    if (error === undefined) waiting.resolve(value);
    else waiting.reject(unpackError(error));
  }

  /** After this every call fails in one way. */
  #fail(error) {
    this.#failure ??= error;
    for (const { reject } of this.#calls.values()) reject(this.#failure);
    this.#calls.clear();
  }
}
