// From the runtime's events to the chunks of a chat's answer, and chunks put together.

import { Tally, answer, finish, logprobOf, token } from "./answer.js";

const decoder = new TextDecoder("utf-8", { ignoreBOM: true });

/** Chunks of a chat's answer. Reasoning and tool calls are told apart from text. */
export class ChatStream {
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
    this.#choices = prepared.parsers.map((parser) => ({
      parser,
      started: false,
      ended: false,
      tokens: 0,
      calls: 0,
      logprobs: [],
    }));
    this.#tally = new Tally(prepared.natives);
  }

  /** Whether every choice has ended. */
  get done() {
    return this.#choices.every((choice) => choice.ended);
  }

  /** The chunks that an event gives. */
  push(position, event) {
    const state = this.#choices[event.choice];
    if (state.ended) return [];
    const chunks = [];
    if (!state.started) {
      state.started = true;
      // Text may still be held back: clients learn now that the answer has begun.
      chunks.push(this.#chunk(event.choice, { role: "assistant", content: "" }));
    }
    const last = event.kind === "done";
    if (!last) {
      state.tokens += 1;
      if (this.#prepared.logprobs) state.logprobs.push(this.#logprob(event));
    }
    for (const delta of event.text || last ? state.parser.push(event.text, last) : []) {
      const made = this.#delta(state, delta);
      if (made === null) {
        // a second call where one was asked for
        return [...chunks, ...this.#end(position, event.choice, "tool_calls", null, null)];
      }
      chunks.push(this.#chunk(event.choice, made, state));
    }
    if (last) {
      const [reason, stopReason] = finish(event);
      const told = state.calls && reason === "stop" ? "tool_calls" : reason;
      chunks.push(...this.#end(position, event.choice, told, stopReason, event));
    }
    return chunks;
  }

  /** Frees the parsers. */
  close() {
    for (const { parser } of this.#choices) parser.close();
  }

  #delta(state, { content, reasoning_content: reasoning, tool_call: call }) {
    if (call === undefined) {
      return {
        ...(content !== undefined && { content }),
        ...(reasoning !== undefined && { reasoning_content: reasoning }),
      };
    }
    if (call.index > 0 && this.#prepared.oneToolCall) return null;
    const isNew = call.index >= state.calls;
    state.calls = Math.max(state.calls, call.index + 1);
    return {
      tool_calls: [
        {
          index: call.index,
          ...(isNew && { id: `call_${token()}`, type: "function" }),
          function: {
            ...(call.name !== undefined && { name: call.name }),
            arguments: call.arguments ?? "",
          },
        },
      ],
    };
  }

  #end(position, choice, reason, stopReason, done) {
    const state = this.#choices[choice];
    state.ended = true;
    state.parser.close();
    this.#tally.add(position, done, state.tokens);
    const chunk = this.#chunk(choice, {}, state);
    chunk.choices[0].finish_reason = reason;
    if (stopReason !== null) chunk.choices[0].stop_reason = stopReason;
    const chunks = [chunk];
    if (this.done && this.#prepared.includeUsage) {
      const more = { ...this.#tally.result(), seed: this.#prepared.seed };
      chunks.push(answer(this.#header, "chat.completion.chunk", [], more));
    }
    return chunks;
  }

  #chunk(index, delta, state = null) {
    let logprobs = null;
    if (state !== null && state.logprobs.length > 0) {
      logprobs = { content: state.logprobs, refusal: null };
      state.logprobs = [];
    }
    return answer(this.#header, "chat.completion.chunk", [
      { index, delta, logprobs, finish_reason: null },
    ]);
  }

  #logprob(event) {
    return {
      ...this.#known(event.token_id, event.logprob),
      top_logprobs: event.top_logprobs.map((entry) => this.#known(entry.token_id, entry.logprob)),
    };
  }

  #known(id, logprob) {
    const data = this.#tokenBytes(id);
    return { token: decoder.decode(data), logprob: logprobOf(logprob), bytes: Array.from(data) };
  }
}

/** Puts the chunks of a chat together: the answer of a request that does not stream. */
export class ChatAssembler {
  #prepared;
  #choices;
  #last = null;

  constructor(prepared) {
    this.#prepared = prepared;
    this.#choices = Array.from({ length: prepared.choices }, () => ({
      content: "",
      reasoning: "",
      calls: [],
      logprobs: [],
      finish_reason: "stop",
      stop_reason: null,
    }));
  }

  /** Takes the next chunk. */
  add(chunk) {
    this.#last = chunk;
    for (const {
      index,
      delta,
      logprobs,
      finish_reason: reason,
      stop_reason: stop,
    } of chunk.choices) {
      const parts = this.#choices[index];
      parts.content += delta.content ?? "";
      parts.reasoning += delta.reasoning_content ?? "";
      for (const piece of delta.tool_calls ?? []) {
        if (piece.id !== undefined) {
          const named = { name: piece.function.name ?? "", arguments: "" };
          parts.calls.push({ id: piece.id, type: "function", function: named });
        }
        parts.calls[piece.index].function.arguments += piece.function.arguments;
      }
      parts.logprobs.push(...(logprobs?.content ?? []));
      if (reason !== null) [parts.finish_reason, parts.stop_reason] = [reason, stop ?? null];
    }
  }

  /** The answer, once all chunks are there. */
  result() {
    const choices = this.#choices.map((parts, index) => {
      const { content, reasoning, calls } = parts;
      const message = {
        role: "assistant",
        content: content || !calls.length ? content : null,
        refusal: null,
      };
      if (calls.length) message.tool_calls = calls;
      if (reasoning) message.reasoning_content = reasoning;
      const logprobs = this.#prepared.logprobs ? { content: parts.logprobs, refusal: null } : null;
      const choice = { index, message, logprobs, finish_reason: parts.finish_reason };
      if (parts.stop_reason !== null) choice.stop_reason = parts.stop_reason;
      return choice;
    });
    const { usage = null, timings = null } = this.#last;
    return answer(this.#last, "chat.completion", choices, {
      usage,
      timings,
      seed: this.#prepared.seed,
    });
  }
}
