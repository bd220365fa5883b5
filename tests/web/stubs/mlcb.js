// Stands in for our own engine.

import { MlcbError } from "./errors.js";

const pause = (milliseconds) =>
  new Promise((resolve) => {
    setTimeout(resolve, milliseconds);
  });

export class Engine {
  static async load(url, { worker, signal, onProgress }) {
    if (worker !== true) throw new Error("the page's thread is no place for a model");
    const manifest = await (await fetch(new URL("bundle.json", url))).json();
    onProgress({ phase: "manifest", loadedBytes: 0, totalBytes: 0, file: "bundle.json" });
    const totalBytes = manifest.files.reduce((sum, file) => sum + file.size, 0);
    for (const part of [0.25, 0.5, 1]) {
      onProgress({
        phase: "download",
        loadedBytes: totalBytes * part,
        totalBytes,
        file: manifest.params,
      });
      await pause(5);
      if (signal.aborted) throw signal.reason;
    }
    onProgress({
      phase: "open",
      loadedBytes: totalBytes,
      totalBytes,
      file: null,
      warning: "the files are not kept",
    });
    return new Engine();
  }

  chat = { completions: { create: async (request, { signal }) => this.#answer(request, signal) } };

  async *#answer({ messages }, signal) {
    const asked = messages.at(-1).content;
    if (asked === "too long") {
      throw new MlcbError("the prompt has 5000 tokens, the window holds 2048", {
        status: 400,
        code: "context_length_exceeded",
        param: "messages",
      });
    }
    yield {
      choices: [
        {
          index: 0,
          delta: { role: "assistant", reasoning_content: "let me think" },
          finish_reason: null,
        },
      ],
    };
    for (const word of `CPU: ${asked}`.split(/(?<= )/)) {
      await pause(2);
      if (signal.aborted) throw signal.reason;
      yield { choices: [{ index: 0, delta: { content: word }, finish_reason: null }] };
    }
    yield { choices: [{ index: 0, delta: {}, finish_reason: "length" }] };
    yield { choices: [], usage: { prompt_tokens: 3, completion_tokens: 4, total_tokens: 7 } };
  }

  async unload() {}
}
