/* The C interface of a bundle's runtime over no model at all, for tests of the Python side: ids are
 * bytes, a request is answered with its own prompt in a circle, and some ids cause trouble. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mlcb.h"

#ifndef STUB_ABI_VERSION
#define STUB_ABI_VERSION MLCB_ABI_VERSION
#endif

enum { BOS = 256, FAILS_IN_STEP = 258, VOCAB = 260, MAX_REQUESTS = 64, MAX_EVENTS = 4096 };

struct mlcb_bundle {
  char manifest[64];
};
typedef struct {
  uint64_t id;
  int32_t* prompt;
  size_t count;
  int32_t made, limit, cancelled;
} request;
struct mlcb_engine {
  request requests[MAX_REQUESTS];
  size_t request_count;
  mlcb_event events[MAX_EVENTS];
  char texts[MAX_EVENTS][64];
  size_t head, tail;
  uint64_t next_id;
  char text[64], info[160];
};

static __thread char last_error[256];

static mlcb_status fail(mlcb_status status, const char* message) {
  snprintf(last_error, sizeof(last_error), "%s", message);
  return status;
}

uint32_t mlcb_abi_version(void) { return STUB_ABI_VERSION; }
const char* mlcb_last_error(void) { return last_error; }

mlcb_status mlcb_bundle_open(const char* path, const mlcb_bundle_options* options,
                             mlcb_bundle** out) {
  if (options != NULL && options->struct_size != sizeof(*options)) {
    return fail(MLCB_ERROR_ARGUMENT, "struct_size of mlcb_bundle_options");
  }
  if (options != NULL && options->verify_full) {
    return fail(MLCB_ERROR_HASH, "params: altered\nwhy: a bit flipped\nhint: copy it again");
  }
  if (path[0] != '/') return fail(MLCB_ERROR_BUNDLE, "the path is not absolute");
  *out = calloc(1, sizeof(mlcb_bundle));
  strcpy((*out)->manifest, "{}");
  return MLCB_OK;
}
void mlcb_bundle_close(mlcb_bundle* bundle) { free(bundle); }
const char* mlcb_bundle_manifest(const mlcb_bundle* bundle) { return bundle->manifest; }

mlcb_status mlcb_tokenize(const mlcb_bundle* bundle, const char* text, size_t text_size,
                          uint32_t flags, int32_t* ids, size_t capacity, size_t* count) {
  (void)bundle;
  size_t bos = (flags & MLCB_TOKENIZE_BOS) != 0;
  *count = 4 * (text_size + bos); /* four times over, so that callers must ask again */
  if (*count > capacity) return fail(MLCB_ERROR_TOO_SMALL, "too small");
  for (size_t i = 0; i < *count; ++i) {
    size_t at = i / 4;
    ids[i] = bos && at == 0 ? BOS : (unsigned char)text[at - bos];
  }
  return MLCB_OK;
}

mlcb_status mlcb_detokenize(const mlcb_bundle* bundle, const int32_t* ids, size_t count,
                            uint32_t flags, char* text, size_t capacity, size_t* size) {
  (void)bundle;
  (void)flags;
  *size = count * 20; /* more than the first guess of a caller */
  if (*size > capacity) return fail(MLCB_ERROR_TOO_SMALL, "too small");
  for (size_t i = 0; i < *size; ++i) text[i] = (char)ids[i / 20];
  return MLCB_OK;
}

mlcb_status mlcb_apply_chat_template(const mlcb_bundle* bundle, const char* messages_json,
                                     int32_t add_generation_prompt, char* text, size_t capacity,
                                     size_t* size) {
  (void)bundle;
  const char* end = add_generation_prompt ? ">" : "";
  *size = strlen(messages_json) + strlen(end);
  if (*size > capacity) return fail(MLCB_ERROR_TOO_SMALL, "too small");
  memcpy(text, messages_json, strlen(messages_json));
  memcpy(text + strlen(messages_json), end, strlen(end));
  return MLCB_OK;
}

mlcb_status mlcb_engine_create(mlcb_bundle* bundle, const mlcb_engine_options* options,
                               mlcb_engine** out) {
  (void)bundle;
  if (options->struct_size != sizeof(*options)) {
    return fail(MLCB_ERROR_ARGUMENT, "struct_size of mlcb_engine_options");
  }
  if (options->variant != NULL && strcmp(options->variant, "avx9") == 0) {
    return fail(MLCB_ERROR_DEVICE, "this CPU lacks avx9");
  }
  *out = calloc(1, sizeof(mlcb_engine));
  (*out)->next_id = 1;
  snprintf((*out)->info, sizeof((*out)->info),
           "{\"variant\":\"stub\",\"activations\":\"%s\",\"threads\":%d,\"batch\":%d,\"kv\":%lld}",
           options->activations ? options->activations : "int8", options->threads,
           options->max_batch_size, (long long)options->kv_tokens);
  return MLCB_OK;
}

void mlcb_engine_destroy(mlcb_engine* engine) {
  if (engine == NULL) return;
  for (size_t i = 0; i < engine->request_count; ++i) free(engine->requests[i].prompt);
  free(engine);
}
const char* mlcb_engine_info(const mlcb_engine* engine) { return engine->info; }

mlcb_status mlcb_request_submit(mlcb_engine* engine, const mlcb_request_params* params,
                                uint64_t* request_id) {
  if (params->struct_size != sizeof(*params)) {
    return fail(MLCB_ERROR_ARGUMENT, "struct_size of mlcb_request_params");
  }
  if (params->temperature < 0) return fail(MLCB_ERROR_ARGUMENT, "temperature is negative");
  if (params->token_count > 100) return fail(MLCB_ERROR_TOO_LONG, "101 tokens do not fit 100");
  request* slot = &engine->requests[engine->request_count++];
  memset(slot, 0, sizeof(*slot));
  *request_id = slot->id = engine->next_id++;
  slot->count = params->token_count;
  slot->limit = params->max_tokens > 0 ? params->max_tokens : 100 - (int32_t)params->token_count;
  slot->prompt = malloc(sizeof(int32_t) * (params->token_count + 1));
  memcpy(slot->prompt, params->token_ids, sizeof(int32_t) * params->token_count);
  return MLCB_OK;
}

mlcb_status mlcb_request_cancel(mlcb_engine* engine, uint64_t request_id) {
  for (size_t i = 0; i < engine->request_count; ++i) {
    if (engine->requests[i].id == request_id) {
      engine->requests[i].cancelled = 1;
      return MLCB_OK;
    }
  }
  return fail(MLCB_ERROR_NOT_FOUND, "no such request");
}

static void emit(mlcb_engine* engine, uint64_t id, int32_t kind, int32_t token, int32_t reason,
                 int32_t status, const char* text) {
  mlcb_event* event = &engine->events[engine->tail % MAX_EVENTS];
  event->request_id = id;
  event->kind = kind;
  event->token_id = token;
  event->finish_reason = reason;
  event->status = status;
  snprintf(engine->texts[engine->tail % MAX_EVENTS], 64, "%s", text);
  ++engine->tail;
}

mlcb_status mlcb_engine_step(mlcb_engine* engine, int32_t* busy) {
  size_t kept = 0;
  for (size_t i = 0; i < engine->request_count; ++i) {
    request* r = &engine->requests[i];
    int32_t id = r->prompt[r->made % r->count];
    int done = 1;
    if (r->cancelled) {
      emit(engine, r->id, MLCB_EVENT_DONE, -1, MLCB_FINISH_CANCEL, 0, "");
    } else if (id == FAILS_IN_STEP) {
      emit(engine, r->id, MLCB_EVENT_ERROR, -1, 0, MLCB_ERROR_KERNEL, "a kernel failed");
    } else {
      char text[2] = {(char)(id < 128 ? id : '?'), 0};
      emit(engine, r->id, MLCB_EVENT_TOKEN, id, 0, 0, text);
      done = ++r->made >= r->limit;
      if (done) emit(engine, r->id, MLCB_EVENT_DONE, -1, MLCB_FINISH_LENGTH, 0, "");
    }
    if (done) {
      free(r->prompt);
    } else {
      engine->requests[kept++] = *r;
    }
  }
  engine->request_count = kept;
  *busy = kept > 0;
  return MLCB_OK;
}
mlcb_status mlcb_engine_start(mlcb_engine* engine) {
  (void)engine;
  return fail(MLCB_ERROR_UNSUPPORTED, "no thread");
}
mlcb_status mlcb_engine_stop(mlcb_engine* engine) {
  (void)engine;
  return MLCB_OK;
}

mlcb_status mlcb_engine_poll(mlcb_engine* engine, mlcb_event* event, int32_t timeout_ms) {
  (void)timeout_ms;
  if (event->struct_size != sizeof(*event)) {
    return fail(MLCB_ERROR_ARGUMENT, "struct_size of mlcb_event");
  }
  event->kind = MLCB_EVENT_NONE;
  if (engine->head == engine->tail) return MLCB_OK;
  size_t at = engine->head++ % MAX_EVENTS;
  *event = engine->events[at];
  event->struct_size = sizeof(*event);
  memcpy(engine->text, engine->texts[at], sizeof(engine->text));
  event->text = engine->text;
  event->text_size = strlen(engine->text);
  return MLCB_OK;
}

mlcb_status mlcb_engine_logits(mlcb_engine* engine, const int32_t* token_ids, size_t count,
                               float* logits, size_t capacity) {
  (void)engine;
  if (capacity < count * VOCAB) return fail(MLCB_ERROR_TOO_SMALL, "too small");
  for (size_t i = 0; i < count; ++i) {
    for (size_t v = 0; v < VOCAB; ++v) {
      logits[i * VOCAB + v] = (float)i + ((size_t)token_ids[(i + 1) % count] == v ? 10.f : 0.f);
    }
  }
  return MLCB_OK;
}
