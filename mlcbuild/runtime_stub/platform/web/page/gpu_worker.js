// The worker in which MLC's browser client runs, so that the page stays smooth. It takes {load: url},
// {answer: request} and {stop: true}, one at a time, and tells {progress}, {chunk}, and at the end
// {done: true} or {error}.

import { modelRecord, prefetch } from "../client.js";
import { packError } from "../errors.js";

let engine = null;
let forgetsEnds = false; // whether the client may not go on from what it has computed; see below
let stop = () => {};

const tell = (message) => globalThis.postMessage(message);

const CLIENT = "web-llm.js"; // MLC's client, as npm has it

// How the client's own reports begin.
const REPORTS = [
  ["Loading model from cache", "copy"],
  ["Loading GPU shader modules", "compile"],
];

function report({ text, progress }) {
  const known = REPORTS.find(([start]) => text.startsWith(start));
  if (known === undefined) return;
  tell({ progress: { step: known[1], unit: "parts", loaded: progress, total: 1, file: null } });
}

async function load(url) {
  const controller = new AbortController();
  stop = () => controller.abort();
  const { totalBytes: all } = await prefetch(url, {
    signal: controller.signal,
    onProgress: ({ loadedBytes, totalBytes, file, warning }) =>
      tell({
        progress: {
          step: "download",
          unit: "bytes",
          loaded: loadedBytes,
          total: totalBytes,
          file,
          warning,
        },
      }),
  });
  // From here on the page ends the worker as a whole: the client cannot stop everywhere.
  stop = () => tell({ error: packError(new DOMException("stopped", "AbortError")) });
  tell({ progress: { step: "download", unit: "bytes", loaded: all, total: all, file: CLIENT } });
  const { MLCEngine } = await import(`../${CLIENT}`);
  tell({ progress: { step: "copy", loaded: 0, total: 0, file: null } });
  const record = await modelRecord(url);
  engine = new MLCEngine({ appConfig: { model_list: [record] }, initProgressCallback: report });
  await engine.reload(record.model_id);
  forgetsEnds = await endsAnswers(url);
}

/**
 * Whether the conversation template puts something behind an answer. When the client goes on from
 * what it has computed of a conversation, it leaves that out, and the model answers worse.
 */
async function endsAnswers(url) {
  const found = await caches.match(new URL("mlc-chat-config.json", url).href);
  const { seps = [""] } = (await found.json()).conv_template ?? {};
  return seps[1 % seps.length] !== "";
}

/**
 * Messages as the client takes them: it puts what the system says into the template by replace(),
 * to which $$, $& and the like are commands. Two dollars stand for one.
 */
const forClient = (messages) =>
  messages.map((message) =>
    message.role === "system"
      ? { ...message, content: message.content.replaceAll("$", "$$$$") }
      : message,
  );

async function answer(request) {
  let stopped = false;
  stop = () => {
    stopped = true;
    engine.interruptGenerate();
  };
  if (forgetsEnds) await engine.resetChat(); // so that it computes the conversation as it is
  const asked = { ...request, messages: forClient(request.messages) };
  // A signal that comes before the client has begun would be forgotten by it.
  for await (const chunk of await engine.chat.completions.create(asked)) {
    tell({ chunk });
    if (stopped) engine.interruptGenerate();
  }
  if (stopped) throw new DOMException("stopped", "AbortError");
}

globalThis.addEventListener("message", async ({ data }) => {
  if (data.stop) {
    stop();
    return;
  }
  try {
    await (data.load !== undefined ? load(data.load) : answer(data.answer));
    tell({ done: true });
  } catch (error) {
    tell({ error: packError(error) });
  } finally {
    stop = () => {};
  }
});
