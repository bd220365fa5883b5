// What chats and plain texts share of their answers.

const LOWEST_LOGPROB = -9999; // JSON has no infinity; OpenAI says this for "cannot be"

/** Random hexadecimal digits for ids. */
export function token() {
  const bytes = crypto.getRandomValues(new Uint8Array(12));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** What all chunks of an answer say alike. */
export function makeHeader(prefix, manifest) {
  const digest = manifest.tree_digest.replace(/^sha256:/, "");
  return {
    id: `${prefix}-${token()}`,
    created: Math.floor(Date.now() / 1000),
    model: manifest.name,
    system_fingerprint: `fp_${digest.slice(0, 12)}`,
  };
}

/** An answer, or a chunk of one, with the fields in OpenAI's order. */
export function answer(
  header,
  object,
  choices,
  { usage = null, seed = null, timings = null } = {},
) {
  const made = { id: header.id, object, created: header.created, model: header.model, choices };
  if (usage !== null) made.usage = usage;
  made.system_fingerprint = header.system_fingerprint;
  if (seed !== null) made.seed = seed;
  if (timings !== null) made.timings = timings;
  return made;
}

export const logprobOf = (value) =>
  value === null || !(value > LOWEST_LOGPROB) ? LOWEST_LOGPROB : value;

/** finish_reason and stop_reason of a "done" event. */
export function finish(event) {
  if (event.finish_reason === "stop") return ["stop", event.stop_string || null];
  if (event.finish_reason === "length") return ["length", null];
  // A deadline or a cancellation cut the text off; OpenAI has no word for that.
  return ["length", event.finish_reason];
}

/** Usage of all choices of all prompts of a request. */
export class Tally {
  #prompts;
  #cached;
  #completion = 0;
  #slowest = null;

  constructor(natives) {
    this.#prompts = natives.map((native) => native.token_ids.length);
    this.#cached = natives.map(() => 0);
  }

  /** Counts a choice that ended after `seen` tokens; `done`: its event, null if it was cut off. */
  add(position, done, seen) {
    if (done === null) {
      this.#completion += seen;
      return;
    }
    this.#prompts[position] = done.prompt_tokens;
    this.#cached[position] = Math.max(this.#cached[position], done.cached_tokens);
    this.#completion += done.completion_tokens;
    if (this.#slowest === null || done.total_seconds > this.#slowest.total_seconds)
      this.#slowest = done;
  }

  /** The sums, and the seconds of the choice that took longest. */
  result() {
    const sum = (numbers) => numbers.reduce((a, b) => a + b, 0);
    const prompt = sum(this.#prompts);
    const slowest = this.#slowest;
    return {
      usage: {
        prompt_tokens: prompt,
        completion_tokens: this.#completion,
        total_tokens: prompt + this.#completion,
        prompt_tokens_details: { cached_tokens: sum(this.#cached) },
      },
      timings:
        slowest === null
          ? null
          : {
              queue_seconds: slowest.queue_seconds,
              first_token_seconds: slowest.first_token_seconds,
              total_seconds: slowest.total_seconds,
            },
    };
  }
}
