// The options of Engine.load: names, types, defaults.

import { boolean, closest, integer, literal, nullable, object, spell, string } from "./check.js";
import { invalid } from "./errors.js";
import { isNode } from "./host.js";

const count = nullable(integer({ ge: 1, lt: 2 ** 31 }));

// What goes to the thread that loads: plain data.
const loadOptions = object({
  cache: nullable(literal("auto", "opfs", "cache-api", "none")),
  activations: nullable(literal("int8", "float")),
  variant: nullable(string({ nonEmpty: true })),
  mode: nullable(literal("server", "local", "interactive")),
  maxBatchSize: count,
  contextTokens: count,
  kvTokens: count,
  kvBytes: nullable(integer({ ge: 1 })),
  maxWaiting: nullable(integer({ ge: 0, lt: 2 ** 31 })),
  prefixCache: nullable(boolean),
  speculation: nullable(literal("ngram")),
  speculationTokens: count,
  profile: nullable(boolean),
});

/** The names of all options. */
export const optionNames = [...Object.keys(loadOptions.fields), "worker", "onProgress", "signal"];

const DEFAULT_BATCH = 4;
const DEFAULT_CONTEXT = 4096; // tokens; KV pages of long windows are a large part of 4 GiB

function wrong(text, param, hint = null) {
  return invalid(text, { param, code: "invalid_option", hint });
}

/** Engine.load's options: {load: plain data, worker, onProgress, signal, fetch}. */
export function readOptions(given = {}) {
  if (typeof given !== "object" || given === null || Array.isArray(given)) {
    throw wrong("options are an object", null);
  }
  const { worker = !isNode, onProgress = null, signal = null, ...rest } = given;
  if (typeof worker !== "boolean" && typeof worker !== "function") {
    throw wrong("worker is true, false or a function that makes a worker", "worker");
  }
  if (onProgress !== null && typeof onProgress !== "function") {
    throw wrong("onProgress is a function", "onProgress");
  }
  if (signal !== null && typeof signal?.addEventListener !== "function") {
    throw wrong("signal is an AbortSignal", "signal");
  }
  const faults = [];
  const load = loadOptions(rest, [], faults);
  if (faults.length > 0) {
    const [{ path, kind, reason }] = faults;
    const name = spell(path);
    if (kind !== "unknown") throw wrong(`${name}: ${reason}`, name);
    const close = closest(name, optionNames);
    throw wrong(`unknown option ${name}`, name, close && `did you mean ${close}?`);
  }
  const sizes = ["contextTokens", "kvTokens", "kvBytes"].filter((name) => load[name] !== undefined);
  if (sizes.length > 1) {
    throw wrong(`${sizes.join(" and ")} both say how large the KV cache is`, sizes[1], "give one");
  }
  return { load: { cache: "auto", ...load }, worker, onProgress, signal };
}

/**
 * mlcb_engine_options for options and the limits of a bundle's manifest. Without a size the KV
 * cache holds one window of at most 4096 tokens, which all requests share.
 */
export function engineOptions(
  load,
  variant,
  { context_window_size: window, max_batch_size: most },
) {
  const limited = load.mode !== undefined;
  const batch = load.maxBatchSize ?? (limited ? 0 : Math.min(DEFAULT_BATCH, most));
  let tokens = load.kvTokens ?? 0;
  if (load.kvTokens === undefined && load.kvBytes === undefined) {
    // The runtime puts a token of its own behind a window that is full.
    const context = Math.min(load.contextTokens ?? DEFAULT_CONTEXT, window);
    tokens = load.contextTokens === undefined ? context : context * Math.max(1, batch);
  }
  return {
    variant: variant.name,
    activations: variant.activations,
    mode: load.mode ?? null,
    max_batch_size: batch,
    kv_tokens: tokens,
    kv_bytes: load.kvBytes ?? 0,
    max_waiting: load.maxWaiting ?? 0,
    no_prefix_cache: load.prefixCache === false ? 1 : 0,
    speculation: load.speculation ?? null,
    speculation_tokens: load.speculationTokens ?? 0,
    profile: load.profile ? 1 : 0,
  };
}
