/* mlcb: the C interface of a model bundle's own runtime.
 *
 * A bundle holds weights, kernels and a tokenizer; an engine runs requests over it. Every handle is
 * opaque. Every parameter struct starts with struct_size: set it to sizeof(the struct) and zero the
 * rest for defaults. Functions return mlcb_status; the message of the last failure on this thread
 * is mlcb_last_error(). No exception crosses this interface. Calls on one bundle or engine may come
 * from any thread, except those that close or destroy it, which must be the last. Strings are
 * UTF-8.
 *
 * Any function may return MLCB_ERROR_ARGUMENT (a NULL where none is allowed, a struct_size below
 * that of this version), MLCB_ERROR_MEMORY and MLCB_ERROR_INTERNAL; what else it returns stands
 * with it. */
#ifndef MLCB_H_
#define MLCB_H_

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#define MLCB_API __declspec(dllexport)
#elif defined(__wasm__)
#define MLCB_API __attribute__((used, visibility("default"))) /* "used": exported */
#else
#define MLCB_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define MLCB_ABI_VERSION 2

typedef struct mlcb_bundle mlcb_bundle;
typedef struct mlcb_engine mlcb_engine;

/* 1..19 the caller's fault, 20..39 the bundle's, 40..59 the machine's, 60.. our own. */
typedef enum mlcb_status {
  MLCB_OK = 0,
  MLCB_ERROR_ARGUMENT = 1,    /* a parameter is out of its range */
  MLCB_ERROR_TOO_SMALL = 2,   /* the output buffer is too small; the needed size is returned */
  MLCB_ERROR_TOO_LONG = 3,    /* the prompt does not fit the context window */
  MLCB_ERROR_NOT_FOUND = 4,   /* no such request */
  MLCB_ERROR_UNSUPPORTED = 5, /* the bundle does not offer what was asked for */
  MLCB_ERROR_BUSY = 6,        /* as many requests wait as may: try again later */
  MLCB_ERROR_DEADLINE = 7,    /* a request's time ran out before its first token */
  MLCB_ERROR_GRAMMAR = 8,     /* a grammar, JSON schema or regular expression is not valid */
  MLCB_ERROR_BUNDLE = 20,     /* a file of the bundle is missing, truncated or malformed */
  MLCB_ERROR_VERSION = 21,    /* plan, params or ABI version differs from the runtime's */
  MLCB_ERROR_HASH = 22,       /* a file's bytes are not the ones that the manifest names */
  MLCB_ERROR_DEVICE = 40,     /* no kernel variant fits this CPU */
  MLCB_ERROR_MEMORY = 41,     /* memory or KV pages are used up */
  MLCB_ERROR_IO = 42,         /* the operating system refused a read or a map */
  MLCB_ERROR_KERNEL = 60,     /* a kernel reported an error */
  MLCB_ERROR_INTERNAL = 61
} mlcb_status;

/* The ABI version that this library implements; compare it with MLCB_ABI_VERSION. */
MLCB_API uint32_t mlcb_abi_version(void);
/* What the last failed call on this thread has to say; valid until the next call on this thread. */
MLCB_API const char* mlcb_last_error(void);

/* ---- bundle -------------------------------------------------------------------------------- */

typedef struct mlcb_bundle_options {
  size_t struct_size;
  int32_t verify_full; /* 1: hash the params too (about 1.8 GB/s) */
} mlcb_bundle_options;

/* Opens the bundle in folder path. options may be NULL. *out is NULL if it fails: _BUNDLE,
 * _VERSION, _HASH, _IO, _UNSUPPORTED (a part of the tokenizer that this runtime lacks). */
MLCB_API mlcb_status mlcb_bundle_open(const char* path, const mlcb_bundle_options* options,
                                      mlcb_bundle** out);
/* Closes it; engines over it keep what they need. NULL is fine. */
MLCB_API void mlcb_bundle_close(mlcb_bundle* bundle);
/* The manifest, bundle.json, as it was read; valid until the bundle is closed. */
MLCB_API const char* mlcb_bundle_manifest(const mlcb_bundle* bundle);

/* ---- text ---------------------------------------------------------------------------------- */

enum {
  MLCB_TOKENIZE_SPECIAL = 1,   /* recognize special tokens inside the text */
  MLCB_TOKENIZE_BOS = 2,       /* put the BOS token in front where the model wants one */
  MLCB_DETOKENIZE_SPECIAL = 4, /* keep special tokens in the text */
  MLCB_DETOKENIZE_INSIDE = 8   /* as in the middle of a text: a space in front stays */
};

/* Text to token ids. *count is set to the number of ids, also when capacity is too small
 * (_TOO_SMALL; ids may be NULL then if capacity is 0). */
MLCB_API mlcb_status mlcb_tokenize(const mlcb_bundle* bundle, const char* text, size_t text_size,
                                   uint32_t flags, int32_t* ids, size_t capacity, size_t* count);
/* Token ids to bytes (not terminated). *size is set to the number of bytes needed, also when
 * capacity is too small (_TOO_SMALL). */
MLCB_API mlcb_status mlcb_detokenize(const mlcb_bundle* bundle, const int32_t* ids, size_t count,
                                     uint32_t flags, char* text, size_t capacity, size_t* size);
/* Renders a conversation with the model's own chat template. conversation_json is an array of
 * messages, [{"role": "user", "content": "..."}, ...], or an object:
 *   {"messages": [...],                  as above; content may be a list of {"type": "text"} parts
 *    "tools": [...],                     OpenAI's function tools; left out: none
 *    "add_generation_prompt": true,      the start of the assistant's turn (the default)
 *    "continue_final_message": false,    leave the last message open for the model to go on
 *    "now": 1767225600,                  seconds since 1970 (UTC) for templates that tell the date
 *    "variables": {...}}                 what else the template may ask for
 * *size as above (_TOO_SMALL). What the template refuses (raise_exception) is an _ARGUMENT error
 * with its words; tools for a template that has no place for them are _UNSUPPORTED. */
MLCB_API mlcb_status mlcb_apply_chat_template(const mlcb_bundle* bundle,
                                              const char* conversation_json, char* text,
                                              size_t capacity, size_t* size);

/* ---- structured output --------------------------------------------------------------------- */

typedef enum mlcb_grammar_kind {
  MLCB_GRAMMAR_NONE = 0,
  MLCB_GRAMMAR_JSON = 1,        /* any JSON value that is an object or array; no text needed */
  MLCB_GRAMMAR_JSON_SCHEMA = 2, /* a JSON schema (2020-12) */
  MLCB_GRAMMAR_REGEX = 3,       /* the whole text matches */
  MLCB_GRAMMAR_EBNF = 4,        /* rules "name ::= ..."; the first, or root, is the start */
  MLCB_GRAMMAR_STRUCTURE = 5    /* JSON that puts the others together: docs/structured-output.md */
} mlcb_grammar_kind;

/* Compiles a grammar and keeps it for requests that name the same one; _GRAMMAR says where and why
 * one is not valid or holds what is not supported. */
MLCB_API mlcb_status mlcb_grammar_check(const mlcb_bundle* bundle, int32_t kind, const char* text);

/* ---- tool calls ---------------------------------------------------------------------------- */

/* The grammar (kind MLCB_GRAMMAR_STRUCTURE) under which a model of this bundle must call one of
 * tools_json, OpenAI's array; tool_choice_json is "required" (with the quotation marks) or
 * {"type": "function", "function": {"name": ...}}; parallel: whether several calls may follow one
 * another. *size as above. _UNSUPPORTED if the bundle has no convention for tool calls. */
MLCB_API mlcb_status mlcb_tool_grammar(const mlcb_bundle* bundle, const char* tools_json,
                                       const char* tool_choice_json, int32_t parallel, char* text,
                                       size_t capacity, size_t* size);

typedef struct mlcb_output_parser mlcb_output_parser;

/* Tells apart what a model writes: text, reasoning, tool calls, by the bundle's conventions.
 * options_json: {"tools": bool, "reasoning": bool, "prompt": "..."}; NULL: neither. prompt: the
 * text before (its end is enough), which may have opened or closed the reasoning. */
MLCB_API mlcb_status mlcb_output_parser_create(const mlcb_bundle* bundle, const char* options_json,
                                               mlcb_output_parser** out);
MLCB_API void mlcb_output_parser_destroy(mlcb_output_parser* parser);
/* Takes the next piece of text; last: nothing follows. *deltas_json is an array, valid until the
 * next call on this parser, of
 *   {"content": "..."} | {"reasoning_content": "..."} |
 *   {"tool_call": {"index": 0, "name": "...", "arguments": "..."}}
 * where a call's name comes once, with its first delta, and arguments are pieces of JSON text. What
 * turns out to be no well-formed call comes as content. */
MLCB_API mlcb_status mlcb_output_parser_push(mlcb_output_parser* parser, const char* text,
                                             size_t text_size, int32_t last,
                                             const char** deltas_json);

/* ---- engine -------------------------------------------------------------------------------- */

typedef struct mlcb_engine_options {
  size_t struct_size;
  int32_t threads;         /* 0: one for each CPU that this process may use */
  int32_t max_batch_size;  /* 0: the mode's limit */
  int64_t kv_tokens;       /* tokens of KV cache; 0: see kv_bytes */
  uint64_t kv_bytes;       /* a budget in bytes instead; 0: context_window_size * max_batch_size
                              tokens, in pages that take memory only when they are used */
  const char* mode;        /* NULL or "server": the bundle's limits; "local": at most 4 requests at
                              once; "interactive": one */
  int32_t max_waiting;     /* requests beyond max_batch_size that are taken in; then: _BUSY. 0: no
                              limit */
  int32_t no_prefix_cache; /* 1: forget a request's pages when it ends */
  const char* speculation; /* NULL: none; "ngram": guess from the text itself; "draft": from draft.
                              The text is the same with and without. */
  int32_t speculation_tokens; /* tokens to guess in a step; 0: 4 */
  mlcb_bundle* draft;         /* a small bundle with the same tokenizer */
  int32_t profile;            /* 1: time every kernel call (mlcb_engine_metrics) */
  const char* activations;    /* NULL: the bundle's best; "int8"; "float" */
  const char* variant;        /* NULL: the best that this CPU can run */
} mlcb_engine_options;

/* options may be NULL. *out is NULL if it fails: _UNSUPPORTED (no such variant), _DEVICE (none for
 * this CPU), _BUNDLE, _VERSION, _IO. */
MLCB_API mlcb_status mlcb_engine_create(mlcb_bundle* bundle, const mlcb_engine_options* options,
                                        mlcb_engine** out);
/* Stops the engine's thread, drops all requests. NULL is fine. */
MLCB_API void mlcb_engine_destroy(mlcb_engine* engine);
/* JSON: variant, activations, threads, limits, memory in bytes; valid until the engine is
 * destroyed. */
MLCB_API const char* mlcb_engine_info(const mlcb_engine* engine);

typedef struct mlcb_logit_bias {
  int32_t token_id;
  float bias; /* added to the logit; -INFINITY forbids the token */
} mlcb_logit_bias;

typedef struct mlcb_request_params {
  size_t struct_size;
  const int32_t* token_ids;
  size_t token_count;
  int32_t n; /* texts to generate from the one prompt; 0: 1. Event.choice tells them apart */
  int32_t max_tokens;       /* 0: as many as the context window holds */
  float temperature;        /* 0: greedy */
  float top_p;              /* 0: off (same as 1) */
  int32_t top_k;            /* 0: off */
  float min_p;              /* 0: off */
  float repetition_penalty; /* 0: off (same as 1); over the prompt and the text */
  float presence_penalty;   /* 0: off; these two over the text only */
  float frequency_penalty;
  uint64_t seed; /* choice i of n has a stream of its own */
  const mlcb_logit_bias* logit_bias;
  size_t logit_bias_count;
  int32_t logprobs;        /* 1: the logarithm of each token's probability */
  int32_t top_logprobs;    /* and of that many likeliest tokens, 0..20 */
  int32_t ignore_eos;      /* 1: the model's own stop tokens and strings do not count
                                        (with a grammar its stop tokens end the text all the same) */
  const char* const* stop; /* stop strings, besides the model's own */
  size_t stop_count;
  const int32_t* stop_token_ids; /* stop tokens, besides the model's own */
  size_t stop_token_count;
  int32_t timeout_ms;   /* 0: none; else it ends with what there is by then */
  int32_t grammar_kind; /* mlcb_grammar_kind */
  const char* grammar;
} mlcb_request_params;

/* Copies what params points to and returns at once (a new grammar is compiled first). _TOO_LONG if
 * the prompt does not fit the context window, or could never fit the KV cache, _BUSY if
 * max_waiting requests wait already, _GRAMMAR, _ARGUMENT for a number out of range. */
MLCB_API mlcb_status mlcb_request_submit(mlcb_engine* engine, const mlcb_request_params* params,
                                         uint64_t* request_id);
/* Its DONE event comes with the next step. _NOT_FOUND if it has ended already. */
MLCB_API mlcb_status mlcb_request_cancel(mlcb_engine* engine, uint64_t request_id);

/* One forward step on the caller's thread; *busy is 1 while requests remain. What goes wrong in a
 * step is told by MLCB_EVENT_ERROR of each request in it, not by the status. */
MLCB_API mlcb_status mlcb_engine_step(mlcb_engine* engine, int32_t* busy);
/* Steps on a thread of the engine's own until mlcb_engine_stop or destroy. Starting what runs and
 * stopping what does not are fine; requests outlast a stop. */
MLCB_API mlcb_status mlcb_engine_start(mlcb_engine* engine);
MLCB_API mlcb_status mlcb_engine_stop(mlcb_engine* engine);

typedef enum mlcb_event_kind {
  MLCB_EVENT_NONE = 0,
  MLCB_EVENT_TOKEN = 1, /* token_id; text: whole UTF-8 characters that became final, may be empty */
  MLCB_EVENT_DONE = 2,  /* finish_reason; text: what was held back */
  MLCB_EVENT_ERROR = 3  /* status; text: the message */
} mlcb_event_kind;

typedef enum mlcb_finish_reason {
  MLCB_FINISH_NONE = 0,
  MLCB_FINISH_STOP = 1,   /* a stop token, a stop string, or the grammar's end */
  MLCB_FINISH_LENGTH = 2, /* max_tokens or the context window */
  MLCB_FINISH_CANCEL = 3,
  MLCB_FINISH_DEADLINE = 4 /* timeout_ms */
} mlcb_finish_reason;

typedef struct mlcb_token_logprob {
  int32_t token_id;
  float logprob;
} mlcb_token_logprob;

/* A request ends with one DONE event for each of its n choices, or with one ERROR event for those
 * that have not ended yet. */
typedef struct mlcb_event {
  size_t struct_size;
  uint64_t request_id;
  int32_t kind;
  int32_t choice; /* 0..n-1 */
  int32_t token_id;
  int32_t finish_reason;
  int32_t status;
  const char* text; /* valid until the next poll on this engine */
  size_t text_size;
  float logprob;                          /* of token_id, if asked for */
  const mlcb_token_logprob* top_logprobs; /* likeliest first; valid as text is */
  size_t top_logprob_count;
  const char* stop_string; /* DONE: the stop string that ended the text; else NULL */
  /* DONE: what the request took. */
  int32_t prompt_tokens;
  int32_t cached_tokens;      /* of the prompt, found in the prefix cache */
  int32_t completion_tokens;  /* of this choice */
  double queue_seconds;       /* from submit to the first step */
  double first_token_seconds; /* from submit to the first token */
  double total_seconds;
} mlcb_event;

/* The next event, waiting up to timeout_ms for one (0: do not wait, -1: no limit; waiting needs
 * mlcb_engine_start, _ARGUMENT without). kind is MLCB_EVENT_NONE when there is none. */
MLCB_API mlcb_status mlcb_engine_poll(mlcb_engine* engine, mlcb_event* event, int32_t timeout_ms);

/* What the engine has done and holds, *size as above: format "json", or "prometheus" for the text
 * that a Prometheus server scrapes. docs/metrics.md lists the figures. */
MLCB_API mlcb_status mlcb_engine_metrics(mlcb_engine* engine, const char* format, char* text,
                                         size_t capacity, size_t* size);
/* What this machine can do at most with the engine's threads and the instructions of its variant,
 * as JSON (docs/benchmarking.md), *size as above. The first call measures it: about half a second,
 * 256 MiB of memory, no step meanwhile. */
MLCB_API mlcb_status mlcb_engine_limits(mlcb_engine* engine, char* text, size_t capacity,
                                        size_t* size);
/* Forgets every page that no request holds: what the prefix cache keeps. */
MLCB_API mlcb_status mlcb_engine_clear_cache(mlcb_engine* engine);

/* Logits of every position of a fresh sequence: float32 [count, vocab_size], row major. Runs on the
 * caller's thread, beside running requests, and leaves nothing in the cache. capacity counts floats
 * (_TOO_SMALL). _TOO_LONG beyond the context window, _MEMORY if running requests hold the pages,
 * _KERNEL if a kernel fails. */
MLCB_API mlcb_status mlcb_engine_logits(mlcb_engine* engine, const int32_t* token_ids, size_t count,
                                        float* logits, size_t capacity);

#ifdef __cplusplus
}
#endif
#endif /* MLCB_H_ */
