// Errors: one class, the fields of OpenAI's errors, and what the runtime's status codes mean.

/** mlcb_status of mlcb.h. */
export const Status = Object.freeze({
  OK: 0,
  ARGUMENT: 1,
  TOO_SMALL: 2,
  TOO_LONG: 3,
  NOT_FOUND: 4,
  UNSUPPORTED: 5,
  BUSY: 6,
  DEADLINE: 7,
  GRAMMAR: 8,
  BUNDLE: 20,
  VERSION: 21,
  HASH: 22,
  DEVICE: 40,
  MEMORY: 41,
  IO: 42,
  KERNEL: 60,
  INTERNAL: 61,
});

// mlcb_status: the status and code that the server answers with, and a next step.
const KINDS = new Map([
  [Status.ARGUMENT, [400, "invalid_value"]],
  [
    Status.TOO_LONG,
    [
      400,
      "context_length_exceeded",
      "shorten the prompt, or build with a larger context_window_size",
    ],
  ],
  [Status.NOT_FOUND, [400, "invalid_value"]],
  [Status.UNSUPPORTED, [400, "invalid_value"]],
  [Status.BUSY, [429, "engine_busy", "try again later, or raise maxWaiting"]],
  [Status.DEADLINE, [504, "request_timeout", "raise the timeout, or send fewer requests at once"]],
  [Status.GRAMMAR, [400, "invalid_grammar"]],
  [Status.BUNDLE, [500, "bundle_damaged", "publish the bundle again, whole"]],
  [Status.VERSION, [500, "bundle_version", "build the bundle again with one mlcbuild"]],
  [Status.HASH, [500, "bundle_damaged", "publish the bundle again, whole"]],
  [Status.DEVICE, [501, "unsupported_host"]],
  [Status.MEMORY, [503, "out_of_memory", "lower maxBatchSize or kvTokens, or close other pages"]],
  [Status.IO, [500, "bundle_damaged"]],
]);

const TYPES = new Map([[429, "rate_limit_error"]]);

/**
 * Every error that this module means to throw. `message` says it all on one line, `hint` the next
 * step alone; `status`, `code`, `param` and `type` are those of OpenAI's errors.
 */
export class MlcbError extends Error {
  constructor(
    text,
    { status = 400, code = null, param = null, why = null, hint = null, cause } = {},
  ) {
    super(
      [text, why, hint].filter(Boolean).join("; "),
      cause === undefined ? undefined : { cause },
    );
    this.name = "MlcbError";
    this.text = text;
    this.status = status;
    this.code = code;
    this.param = param;
    this.why = why;
    this.hint = hint;
    this.type = TYPES.get(status) ?? (status >= 500 ? "server_error" : "invalid_request_error");
  }

  /** The body of an HTTP answer that is this error. */
  toJSON() {
    const { message, type, param, code } = this;
    return { error: { message, type, param, code } };
  }
}

/** A parameter of a request that is wrong. */
export function invalid(text, { param = null, code = null, why = null, hint = null } = {}) {
  return new MlcbError(text, { param, code: code ?? "invalid_value", why, hint });
}

// The runtime speaks of its own options; here they go by other names.
const OPTIONS = /\b(kv_tokens|kv_bytes|max_batch_size|max_waiting|speculation_tokens)\b/g;
const camelCase = (name) => name.replace(/_(.)/g, (_, letter) => letter.toUpperCase());

/** The error for a status of the runtime; it puts `why: ` and `hint: ` on lines of their own. */
export function statusError(status, said, param = null) {
  const message = said.replace(OPTIONS, camelCase);
  const head = [];
  const marked = {};
  for (const line of message.split("\n")) {
    const match = /^(why|hint): (.+)$/.exec(line);
    if (match) marked[match[1]] = match[2];
    else if (line) head.push(line);
  }
  const [httpStatus, code, hint] = KINDS.get(status) ?? [500, "internal_error"];
  return new MlcbError(head.join("; ") || `the runtime reports status ${status}`, {
    status: httpStatus,
    code,
    param,
    why: marked.why ?? null,
    hint: marked.hint ?? hint ?? null,
  });
}

/** An error as a message between threads carries it. */
export function packError(error) {
  if (error instanceof MlcbError) {
    const { text, status, code, param, why, hint } = error;
    return { mlcb: true, text, status, code, param, why, hint };
  }
  return {
    mlcb: false,
    name: error?.name,
    text: String(error?.message ?? error),
    stack: error?.stack,
  };
}

/** The reverse of packError. */
export function unpackError(packed) {
  if (packed.mlcb) return new MlcbError(packed.text, packed);
  const isAbort = packed.name === "AbortError" || packed.name === "TimeoutError";
  if (isAbort && typeof DOMException !== "undefined")
    return new DOMException(packed.text, packed.name);
  const error = new Error(packed.text);
  error.name = packed.name ?? "Error";
  if (packed.stack) error.stack = packed.stack;
  return error;
}

/** The reason of an aborted signal, as fetch rejects with it. */
export function abortReason(signal) {
  return signal.reason ?? new DOMException("This operation was aborted", "AbortError");
}
