// Both engines behind one interface:
//
//   const engine = await openEngine(bundle, { onProgress, signal });
//   for await (const { text, thought, tokens, cut } of engine.answer(messages, sampling, signal)) {}
//   await engine.close();
//
// bundle: {url, engine, manifest}. onProgress({step, loaded, total, file, warning}): `step` is one of
// STEPS[engine], `loaded` of `total` are bytes where `unit` is "bytes", else parts of a whole; total
// is 0 where nobody knows. `sampling`: {temperature, topP, most}. `tokens` comes at the end, the
// number of the answer's tokens; `cut` says that the answer was longer than it may be.

import { unpackError } from "../errors.js";

/** What loading goes through. */
export const STEPS = {
  gpu: [
    ["download", "Download"],
    ["copy", "Copy to GPU"],
    ["compile", "Compile"],
  ],
  cpu: [
    ["download", "Download"],
    ["open", "Start"],
  ],
};

export function openEngine(bundle, options) {
  return bundle.engine === "gpu"
    ? GpuEngine.open(bundle, options)
    : CpuEngine.open(bundle, options);
}

const request = (messages, { temperature, topP, most }) => ({
  messages,
  temperature,
  top_p: topP,
  max_tokens: most,
  stream: true,
  stream_options: { include_usage: true },
});

/** What a chunk of OpenAI's shape adds to an answer. */
function partOf(chunk) {
  const [choice] = chunk.choices;
  return {
    text: choice?.delta?.content ?? "",
    thought: choice?.delta?.reasoning_content ?? "",
    tokens: chunk.usage?.completion_tokens ?? null,
    cut: choice?.finish_reason === "length",
  };
}

// ---- our own engine --------------------------------------------------------------------------------

const CPU_STEPS = { manifest: "download", download: "download", compile: "download", open: "open" };

class CpuEngine {
  static async open({ url }, { onProgress, signal }) {
    onProgress({ step: "download", loaded: 0, total: 0, file: null });
    const { Engine } = await import(new URL("platform/web/mlcb.js", url).href);
    const engine = new CpuEngine();
    engine.inner = await Engine.load(url, {
      worker: true,
      signal,
      onProgress: ({ phase, loadedBytes, totalBytes, file, warning }) =>
        onProgress({
          step: CPU_STEPS[phase] ?? phase,
          unit: "bytes",
          file,
          warning,
          loaded: loadedBytes,
          total: phase === "open" ? 0 : totalBytes,
        }),
    });
    return engine;
  }

  async *answer(messages, sampling, signal) {
    const chunks = await this.inner.chat.completions.create(request(messages, sampling), {
      signal,
    });
    for await (const chunk of chunks) yield partOf(chunk);
  }

  close() {
    return this.inner.unload();
  }
}

// ---- MLC's client, in a worker of ours -------------------------------------------------------------

class GpuEngine {
  #worker;
  #stop = null; // ends the call that is waited for

  static async open({ url }, { onProgress, signal }) {
    onProgress({ step: "download", loaded: 0, total: 0, file: null });
    const engine = new GpuEngine();
    engine.#worker = new Worker(new URL("platform/web/page/gpu_worker.js", url), {
      type: "module",
    });
    try {
      await engine.#call({ load: url }, ({ progress }) => onProgress(progress), signal);
    } catch (error) {
      engine.close();
      throw error;
    }
    return engine;
  }

  /** Sends a message and waits for its end; `told` takes what comes before. */
  #call(message, told, signal) {
    return new Promise((resolve, reject) => {
      const abort = () => this.#worker.postMessage({ stop: true });
      const end = (settle, value) => {
        this.#stop = null;
        this.#worker.onerror = null;
        signal?.removeEventListener("abort", abort);
        settle(value);
      };
      this.#stop = () => end(reject, new DOMException("stopped", "AbortError"));
      this.#worker.onmessage = ({ data }) => {
        if (data.error !== undefined) end(reject, unpackError(data.error));
        else if (data.done) end(resolve);
        else told(data);
      };
      this.#worker.onerror = (event) => {
        event.preventDefault();
        end(reject, new Error(event.message || "a script of the engine could not be loaded"));
      };
      signal?.addEventListener("abort", abort, { once: true });
      this.#worker.postMessage(message);
      if (signal?.aborted) abort();
    });
  }

  async *answer(messages, sampling, signal) {
    const waiting = [];
    let wake = () => {};
    let ended = false;
    let failure = null;
    const call = this.#call(
      { answer: request(messages, sampling) },
      ({ chunk }) => {
        waiting.push(chunk);
        wake();
      },
      signal,
    );
    call
      .catch((error) => {
        failure = error;
      })
      .finally(() => {
        ended = true;
        wake();
      });
    while (!ended || waiting.length > 0) {
      if (waiting.length > 0) yield partOf(waiting.shift());
      else
        await new Promise((resolve) => {
          wake = resolve;
        });
    }
    if (failure !== null) throw failure;
  }

  /** Ends the worker, and with it what it still does: nothing waits for it any longer. */
  close() {
    this.#worker.terminate();
    this.#stop?.();
  }
}
