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
#else
#define MLCB_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define MLCB_ABI_VERSION 1

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
  MLCB_TOKENIZE_SPECIAL = 1,  /* recognize special tokens inside the text */
  MLCB_TOKENIZE_BOS = 2,      /* put the BOS token in front where the model wants one */
  MLCB_DETOKENIZE_SPECIAL = 4 /* keep special tokens in the text */
};

/* Text to token ids. *count is set to the number of ids, also when capacity is too small
 * (_TOO_SMALL; ids may be NULL then if capacity is 0). */
MLCB_API mlcb_status mlcb_tokenize(const mlcb_bundle* bundle, const char* text, size_t text_size,
                                   uint32_t flags, int32_t* ids, size_t capacity, size_t* count);
/* Token ids to bytes (not terminated). *size is set to the number of bytes needed, also when
 * capacity is too small (_TOO_SMALL). */
MLCB_API mlcb_status mlcb_detokenize(const mlcb_bundle* bundle, const int32_t* ids, size_t count,
                                     uint32_t flags, char* text, size_t capacity, size_t* size);
/* Renders messages_json, [{"role": "user", "content": "..."}, ...], with the model's chat template
 * and, if add_generation_prompt is not 0, the start of the assistant's turn. *size as above
 * (_TOO_SMALL); messages that the template has no place for are an _ARGUMENT error. */
MLCB_API mlcb_status mlcb_apply_chat_template(const mlcb_bundle* bundle, const char* messages_json,
                                              int32_t add_generation_prompt, char* text,
                                              size_t capacity, size_t* size);

/* ---- engine -------------------------------------------------------------------------------- */

typedef struct mlcb_engine_options {
  size_t struct_size;
  int32_t threads;         /* 0: one for each CPU that this process may use */
  int32_t max_batch_size;  /* 0: the bundle's limit */
  int64_t kv_tokens;       /* tokens of KV cache; 0: context_window_size * max_batch_size, in pages
                              that take memory only when they are used */
  const char* activations; /* NULL: the bundle's best; "int8"; "float" */
  const char* variant;     /* NULL: the best that this CPU can run */
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

typedef struct mlcb_request_params {
  size_t struct_size;
  const int32_t* token_ids;
  size_t token_count;
  int32_t max_tokens; /* 0: as many as the context window holds */
  float temperature;  /* 0: greedy */
  float top_p;        /* 0: off (same as 1) */
  int32_t top_k;      /* 0: off */
  uint64_t seed;
  int32_t ignore_eos;      /* 1: stop only at max_tokens */
  const char* const* stop; /* stop strings, besides the model's own stop tokens */
  size_t stop_count;
} mlcb_request_params;

/* Copies what params points to and returns at once. _TOO_LONG if the prompt does not fit the
 * context window, _MEMORY if the request could never fit the KV cache, _ARGUMENT for a number out
 * of range. */
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
  MLCB_FINISH_STOP = 1,   /* a stop token or a stop string */
  MLCB_FINISH_LENGTH = 2, /* max_tokens or the context window */
  MLCB_FINISH_CANCEL = 3
} mlcb_finish_reason;

typedef struct mlcb_event {
  size_t struct_size;
  uint64_t request_id;
  int32_t kind;
  int32_t token_id;
  int32_t finish_reason;
  int32_t status;
  const char* text; /* valid until the next poll on this engine */
  size_t text_size;
} mlcb_event;

/* The next event, waiting up to timeout_ms for one (0: do not wait, -1: no limit; waiting needs
 * mlcb_engine_start, _ARGUMENT without). kind is MLCB_EVENT_NONE when there is none. */
MLCB_API mlcb_status mlcb_engine_poll(mlcb_engine* engine, mlcb_event* event, int32_t timeout_ms);

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
