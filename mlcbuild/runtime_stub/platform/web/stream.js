// A streamed answer: an async iterable of chunks that can be left at any time.

import { abortReason } from "./errors.js";

/** Chunks as they come. Leaving a loop over it, or cancel(), cancels the request. */
export class ChunkStream {
  #chunks = [];
  #waiting = null;
  #ended = false;
  #error = null;
  #cancel = () => {};
  #finish = () => {};

  /** What takes the chunks of a session or worker. */
  sink = {
    chunk: (chunk) => this.#add(chunk),
    done: () => this.#end(null),
    fail: (error) => this.#end(error),
  };

  /** Connects what cancels the request, and an AbortSignal. */
  attach(cancel, signal) {
    this.#cancel = cancel;
    if (!signal) return;
    const abort = () => {
      this.#chunks = [];
      this.#stop(abortReason(signal));
    };
    if (signal.aborted) {
      abort();
      return;
    }
    signal.addEventListener("abort", abort, { once: true });
    this.#finish = () => signal.removeEventListener("abort", abort);
    if (this.#ended) this.#finish();
  }

  /** Ends the answer here; what came so far can still be read. */
  cancel() {
    this.#stop(null);
  }

  async next() {
    if (this.#chunks.length > 0) return { done: false, value: this.#chunks.shift() };
    if (this.#ended) {
      const error = this.#error;
      this.#error = null;
      if (error !== null) throw error;
      return { done: true, value: undefined };
    }
    const before = this.#waiting;
    await new Promise((resolve) => {
      this.#waiting = () => {
        before?.();
        resolve();
      };
    });
    return this.next();
  }

  async return(value) {
    this.#chunks = [];
    this.#stop(null);
    return { done: true, value };
  }

  [Symbol.asyncIterator]() {
    return this;
  }

  #stop(error) {
    if (this.#ended) return;
    this.#cancel();
    this.#end(error);
  }

  #add(chunk) {
    if (this.#ended) return;
    this.#chunks.push(chunk);
    this.#wake();
  }

  #end(error) {
    if (this.#ended) return;
    this.#ended = true;
    this.#error = error;
    this.#finish();
    this.#wake();
  }

  #wake() {
    const waiting = this.#waiting;
    this.#waiting = null;
    waiting?.();
  }
}
