// Stands in for @mlc-ai/web-llm: it looks for files where the real one looks, and writes a text that
// the last message asks for.

class ContextWindowSizeExceededError extends Error {
  name = "ContextWindowSizeExceededError";
}

class DeviceLostError extends Error {
  name = "DeviceLostError";
}

const pause = (milliseconds) =>
  new Promise((resolve) => {
    setTimeout(resolve, milliseconds);
  });

// As the real one does it.
function cleanModelUrl(modelUrl) {
  modelUrl += modelUrl.endsWith("/") ? "" : "/";
  if (!modelUrl.match(/.+\/resolve\/.+\//)) modelUrl += "resolve/main/";
  return new URL(modelUrl).href;
}

async function cached(scope, url, kind) {
  const found = await (await caches.open(scope)).match(new Request(url));
  if (found === undefined) throw new Error(`${url} is not in ${scope}`);
  return kind === "json" ? found.json() : found.arrayBuffer();
}

async function verify(data, expected) {
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", data));
  const found = `sha256-${btoa(String.fromCharCode(...digest))}`;
  if (found !== expected) throw new Error(`integrity: ${found} is not ${expected}`);
}

const ANSWERS = {
  hello: "Hello! I am a small model.\n\nAsk me **anything** <b>plain</b>.",
  code: "Here it is:\n\n```python\ndef add(a, b):\n    return a + b\n```\n\nThat adds two numbers.",
  paris:
    "The capital of France is Paris. It lies on the river Seine, and has been the country's " +
    "largest city for most of its history.",
};

export class MLCEngine {
  constructor({ appConfig, initProgressCallback }) {
    this.records = appConfig.model_list;
    this.report = initProgressCallback;
    this.chat = { completions: { create: async (request) => this.#answer(request) } };
  }

  async reload(modelId) {
    const record = this.records.find((item) => item.model_id === modelId);
    const base = cleanModelUrl(record.model);
    await verify(
      await cached("webllm/config", `${base}mlc-chat-config.json`),
      record.integrity.config,
    );
    await verify(await cached("webllm/wasm", record.model_lib), record.integrity.model_lib);
    await verify(
      await cached("webllm/model", `${base}tokenizer.json`),
      record.integrity.tokenizer["tokenizer.json"],
    );
    const { records } = await cached("webllm/model", `${base}tensor-cache.json`, "json");
    this.report({ progress: 0, text: "Start to fetch params" });
    for (const [place, shard] of records.entries()) {
      await cached("webllm/model", `${base}${shard.dataPath}`);
      this.report({
        progress: (place + 1) / records.length,
        text: "Loading model from cache[1/3]: ",
      });
    }
    for (const progress of [0.5, 1]) {
      this.report({ progress, text: "Loading GPU shader modules[1/2]: " });
      await pause(20);
    }
  }

  async resetChat() {
    this.resets = (this.resets ?? 0) + 1;
  }

  interruptGenerate() {
    this.stopped = true;
  }

  async *#answer(request) {
    this.stopped = false;
    const asked = request.messages.at(-1).content;
    const messages = request.messages.slice(0, -1).map(({ role, content }) => ({
      role,
      // As the real one puts it into the template.
      content: role === "system" ? "{system}".replace("{system}", content) : content,
    }));
    await pause(20);
    if (asked === "too long")
      throw new ContextWindowSizeExceededError("Prompt tokens exceed context window size");
    if (asked === "lose the device") throw new DeviceLostError("Device was lost");
    const text =
      asked === "count"
        ? Array.from({ length: 5000 }, (_, i) => i).join(" ")
        : asked === "echo"
          ? JSON.stringify({
              ...request,
              messages,
              resets: this.resets,
            })
          : (ANSWERS[asked] ?? `You said: ${asked}`);
    const words = text.match(/\S*\s*/g).filter(Boolean);
    let tokens = 0;
    for (const content of words) {
      if (this.stopped) break;
      tokens += 1;
      yield { choices: [{ index: 0, delta: { role: "assistant", content }, finish_reason: null }] };
      await pause(asked === "count" ? 5 : 2);
    }
    yield { choices: [{ index: 0, delta: {}, finish_reason: this.stopped ? "abort" : "stop" }] };
    yield {
      choices: [],
      usage: { prompt_tokens: 7, completion_tokens: tokens, total_tokens: tokens + 7 },
    };
  }
}
