// What the JavaScript engine makes of cases that test_web_engine.py puts on stdin: requests that
// are checked, prepared, and answered by scripted events.

import { readFileSync } from "node:fs";

import { ChatAssembler, ChatStream } from "../../mlcbuild/runtime_stub/platform/web/chat_answer.js";
import { MlcbError } from "../../mlcbuild/runtime_stub/platform/web/errors.js";
import { RequestBuilder } from "../../mlcbuild/runtime_stub/platform/web/prepare.js";
import {
  ChatRequest,
  TextRequest,
  parseRequest,
} from "../../mlcbuild/runtime_stub/platform/web/protocol.js";
import { TextAssembler, TextStream } from "../../mlcbuild/runtime_stub/platform/web/text_answer.js";
import { parse } from "./fake_wasm.mjs";

const encoder = new TextEncoder();

const native = {
  tokenize: (text, { bos = false } = {}) => [...(bos ? [256] : []), ...encoder.encode(text)],
  detokenize: (ids) => Uint8Array.from(ids, (id) => id & 255),
  renderChat: (conversation) => JSON.stringify(conversation),
  checkGrammar() {},
  toolGrammar: (tools, choice, parallel) => JSON.stringify([tools, choice, parallel]),
  outputParser(options) {
    const state = { ...options, state: "content", calls: 0, name: "" };
    return { options, push: (text) => parse(state, text), close() {} };
  },
};

const { manifest, chat, cases } = JSON.parse(readFileSync(0, "utf8"));
const builder = new RequestBuilder(native, manifest, chat);
const header = { id: "id", created: 1, model: manifest.name, system_fingerprint: "fp" };
const spell = (id) => Uint8Array.of(id & 255);

function run({ kind, body, events }) {
  const isChat = kind === "chat";
  let prepared;
  try {
    const request = parseRequest(isChat ? ChatRequest : TextRequest, body);
    prepared = isChat ? builder.chat(request) : builder.texts(request);
  } catch (error) {
    if (!(error instanceof MlcbError)) throw error;
    const { message, param, code, status } = error;
    return { error: { message, param, code, status } };
  }
  const drawn = body.seed === undefined || body.seed === null;
  const natives = prepared.natives.map(({ seed, logit_bias: biases, ...rest }) => ({
    ...rest,
    logit_bias: Object.entries(biases).map(([token, bias]) => [Number(token), bias]),
    seed: seed === null ? 0 : drawn ? "drawn" : String(seed),
  }));
  const maker = new (isChat ? ChatStream : TextStream)(prepared, header, spell);
  const assembler = new (isChat ? ChatAssembler : TextAssembler)(prepared);
  const chunks = [];
  for (const [position, event] of events) {
    if (position >= prepared.natives.length || event.choice >= prepared.choices) continue;
    chunks.push(...maker.push(position, event));
  }
  for (const chunk of chunks) assembler.add(chunk);
  return {
    natives,
    stream: prepared.stream,
    usage: prepared.includeUsage,
    parsers: prepared.parsers.map((parser) => parser.options),
    done: maker.done,
    chunks,
    whole: chunks.length ? assembler.result() : null,
  };
}

const plain = (key, value) => {
  if (value === -Infinity) return "-inf";
  if (key === "seed" && typeof value === "number") return 0; // one that was drawn
  return key === "id" && typeof value === "string" && value.startsWith("call_") ? "call" : value;
};
process.stdout.write(JSON.stringify(cases.map(run), plain));
