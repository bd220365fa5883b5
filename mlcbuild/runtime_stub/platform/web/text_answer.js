// From the runtime's events to the chunks of plain texts, and chunks put together.

import { Tally, answer, finish, logprobOf } from "./answer.js";

const decoder = new TextDecoder("utf-8", { ignoreBOM: true });
const OBJECT = "text_completion";
const characters = (text) => [...text].length;

/** Chunks of plain texts; a choice's index counts the choices of earlier prompts too. */
export class TextStream {
  #prepared;
  #header;
  #tokenBytes;
  #choices;
  #tally;

  /** `tokenBytes(id)`: the bytes of a token. */
  constructor(prepared, header, tokenBytes) {
    this.#prepared = prepared;
    this.#header = header;
    this.#tokenBytes = tokenBytes;
    this.#tally = new Tally(prepared.natives);
    this.#choices = prepared.natives.flatMap((native, position) => {
      const echo = prepared.echo[position] ?? "";
      return Array.from({ length: prepared.choices }, () => ({
        echo,
        offset: characters(echo),
        ended: false,
        tokens: 0,
        logprobs: null,
      }));
    });
  }

  /** Whether every choice has ended. */
  get done() {
    return this.#choices.every((choice) => choice.ended);
  }

  /** The chunks that an event gives. */
  push(position, event) {
    const index = position * this.#prepared.choices + event.choice;
    const state = this.#choices[index];
    const last = event.kind === "done";
    if (!last) {
      state.tokens += 1;
      if (this.#prepared.logprobs) this.#addLogprob(state, event);
    }
    const text = state.echo + event.text;
    state.echo = "";
    if (!text && !last) return [];
    const [reason, stopReason] = last ? finish(event) : [null, null];
    const choice = { index, text, logprobs: state.logprobs, finish_reason: reason };
    if (stopReason !== null) choice.stop_reason = stopReason;
    state.logprobs = null;
    const chunks = [answer(this.#header, OBJECT, [choice])];
    if (last) {
      state.ended = true;
      this.#tally.add(position, event, state.tokens);
      if (this.done && this.#prepared.includeUsage) {
        const more = { ...this.#tally.result(), seed: this.#prepared.seed };
        chunks.push(answer(this.#header, OBJECT, [], more));
      }
    }
    return chunks;
  }

  close() {}

  #addLogprob(state, event) {
    state.logprobs ??= {
      tokens: [],
      token_logprobs: [],
      top_logprobs: this.#prepared.topLogprobs ? [] : null,
      text_offset: [],
    };
    const {
      tokens,
      token_logprobs: values,
      top_logprobs: top,
      text_offset: offsets,
    } = state.logprobs;
    const spelled = this.#spell(event.token_id);
    tokens.push(spelled);
    values.push(logprobOf(event.logprob));
    offsets.push(state.offset);
    state.offset += characters(spelled);
    if (top === null) return;
    // Tokens of one spelling (pieces of characters): the likelier one stays.
    const likely = Object.create(null); // a token may be spelled __proto__
    for (const entry of event.top_logprobs) {
      const text = this.#spell(entry.token_id);
      likely[text] ??= logprobOf(entry.logprob);
    }
    top.push(likely);
  }

  #spell(id) {
    return decoder.decode(this.#tokenBytes(id));
  }
}

function joined(first, second) {
  if (first === null || second === null) return first ?? second;
  for (const name of Object.keys(first))
    if (first[name] !== null) first[name].push(...second[name]);
  return first;
}

/** Puts the chunks of plain texts together. */
export class TextAssembler {
  #prepared;
  #choices;
  #last = null;

  constructor(prepared) {
    this.#prepared = prepared;
    this.#choices = Array.from(
      { length: prepared.choices * prepared.natives.length },
      (_, index) => ({ index, text: "", logprobs: null, finish_reason: null }),
    );
  }

  /** Takes the next chunk. */
  add(chunk) {
    this.#last = chunk;
    for (const { index, text, logprobs, ...end } of chunk.choices) {
      const choice = this.#choices[index];
      Object.assign(choice, end, {
        text: choice.text + text,
        logprobs: joined(choice.logprobs, logprobs),
      });
    }
  }

  /** The answer, once all chunks are there. */
  result() {
    const { usage = null, timings = null } = this.#last;
    return answer(this.#last, OBJECT, this.#choices, { usage, timings, seed: this.#prepared.seed });
  }
}
