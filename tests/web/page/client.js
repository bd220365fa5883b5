// What tests do with MLC's client, which lies in the bundle as npm has it. Its own methods are only
// watched: which tokens it feeds, which logits it draws from, which tokens it draws.
import { MLCEngine } from "/bundle/platform/web/web-llm.js";

const ID = "model";
const seen = { fed: [], drawn: [], rows: [] };
let engine = null;
let pipeline = null;
let forced = null; // tokens to draw instead of the client's own choice, in order
let keepRows = false;

function watch() {
  const forward = pipeline.embedAndForward.bind(pipeline);
  pipeline.embedAndForward = (chunk, size) => {
    seen.fed.push(...chunk.flat());
    return forward(chunk, size);
  };
  const draw = pipeline.sampleFromRawLogits.bind(pipeline);
  pipeline.sampleFromRawLogits = async (logits, settings) => {
    if (keepRows) {
      pipeline.updateLogitsOnCPU(logits);
      await pipeline.device.sync();
      seen.rows.push(Float32Array.from(pipeline.logitsOnCPU.toArray()));
    }
    // A forced token needs no draw, and costs none.
    const token = forced?.length ? forced.shift() : await draw(logits, settings);
    seen.drawn.push(token);
    return token;
  };
}

async function load(id = ID, folder = "bundle") {
  const base = new URL("/", location).href;
  engine = new MLCEngine({
    logLevel: "ERROR",
    appConfig: {
      cacheBackend: "cache",
      model_list: [
        {
          model_id: id,
          model: `${base}${folder}/resolve/main/`,
          model_lib: `${base}${folder}/lib/model.wasm`,
        },
      ],
    },
  });
  const begin = performance.now();
  await engine.reload(id);
  pipeline = engine.loadedModelIdToPipeline.get(id);
  watch();
  return performance.now() - begin;
}

// Gives what the client gave, and what was seen of it; `fed` is since the client's last fresh start.
// `force` are tokens to draw, `fresh: false` goes on in the conversation before.
async function chat({ force = null, fresh: anew = true, ...request }) {
  seen.drawn = [];
  if (anew) await fresh();
  forced = force;
  const begin = performance.now();
  let reply;
  if (request.stream) {
    reply = { text: "", chunks: 0 };
    for await (const chunk of await engine.chat.completions.create(request)) {
      reply.text += chunk.choices[0]?.delta.content ?? "";
      reply.chunks += 1;
    }
  } else {
    const whole = await engine.chat.completions.create(request);
    reply = { ...whole.choices[0], usage: whole.usage };
  }
  return { ...reply, fed: seen.fed, drawn: seen.drawn, ms: performance.now() - begin };
}

async function fresh() {
  await engine.resetChat();
  seen.fed = [];
}

// Prefills the first `prompt` of the tokens and decodes the others one by one; the logits behind
// each of them, float32 [tokens - prompt + 1, vocabulary], are posted to /`name`.
async function logits(name, tokens, prompt) {
  await fresh();
  seen.rows = [];
  keepRows = true;
  forced = [...tokens.slice(prompt), 0];
  try {
    await engine.forwardTokensAndSample(tokens.slice(0, prompt), true);
    for (const token of tokens.slice(prompt)) {
      await engine.forwardTokensAndSample([token], false);
    }
  } finally {
    keepRows = false;
    forced = null;
  }
  await fetch(`/${name}`, { method: "POST", body: new Blob(seen.rows) });
  return seen.rows.length;
}

async function unload() {
  await engine.unload();
}

window.test = { load, chat, logits, unload, fresh, pipeline: () => pipeline };
