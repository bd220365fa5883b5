// How an Engine reaches its session: on this thread, or on a worker's by messages. Both have
// start(kind, request, sink) -> promise of a cancel, ask(method, ...args) and close().

import { MlcbError, abortReason, unpackError } from "./errors.js";
import { isNode } from "./host.js";
import { loadSession } from "./load.js";
import { closedError } from "./session.js";

/** A session on this thread. */
export class LocalBackend {
  static async load(bundle, load, { onProgress, signal, outside }) {
    const tell = onProgress ?? undefined;
    const { session, warnings } = await loadSession(bundle, load, { tell, signal, ...outside });
    const backend = new LocalBackend();
    return Object.assign(backend, { session, warnings, manifest: session.manifest, info: session.info });
  }

  async start(kind, request, sink) {
    return this.session.start(kind, request, sink);
  }

  async ask(method, ...args) {
    return this.session[method](...args);
  }

  async close() {
    this.session.close();
  }
}

const crashed = (reason) => new MlcbError(`the worker of the engine failed: ${reason}`, {
  status: 500, code: "worker_crashed", hint: "load the engine again",
});

/** Either kind of worker behind one shape. */
async function openWorker(make, take, fail) {
  const url = new URL("./worker.js", import.meta.url);
  if (isNode) {
    const worker = make === true
      ? new (await import("node:worker_threads")).Worker(url) : make();
    worker.on("message", take);
    worker.on("error", (error) => fail(error?.message ?? String(error)));
    worker.on("exit", (code) => fail(`it exited with code ${code}`));
    return worker;
  }
  // Bundlers look for exactly this expression.
  const worker = make === true
    ? new Worker(new URL("./worker.js", import.meta.url), { type: "module" }) : make();
  await new Promise((resolve, reject) => {
    worker.addEventListener("message", (event) => (event.data.ready ? resolve() : take(event.data)));
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
    const make = worker;
    backend.#worker = await openWorker(make, (message) => backend.#take(message),
      (reason) => backend.#fail(crashed(reason)));
    if (!isNode) bundle = new URL(String(bundle), globalThis.document?.baseURI).href;
    const told = (progress) => {
      try {
        onProgress?.(progress);
      } catch (error) {
        globalThis.reportError?.(error); // a caller's mistake does not stop the load
      }
    };
    const args = { bundle: bundle instanceof URL ? bundle.href : bundle, load };
    const { promise, stop } = backend.#call("load", args, told);
    const abort = () => stop();
    signal?.addEventListener("abort", abort, { once: true });
    try {
      if (signal?.aborted) throw abortReason(signal);
      return Object.assign(backend, await promise);
    } catch (error) {
      promise.catch(() => {});
      await backend.close();
      throw signal?.aborted ? abortReason(signal) : error;
    } finally {
      signal?.removeEventListener("abort", abort);
    }
  }

  async start(kind, request, sink) {
    let begin;
    const begun = new Promise((resolve) => { begin = resolve; });
    const { promise, stop } = this.#call("start", { kind, request }, ({ chunk }) => {
      if (chunk === undefined) begin(true);
      else sink.chunk(chunk);
    });
    let started = false;
    const ended = promise.then(
      (value) => sink.done(value),
      (error) => { if (started) sink.fail(error); else throw error; });
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
      this.#calls.set(call, { resolve, reject, told });
      this.#worker.postMessage({ call, name, args });
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
