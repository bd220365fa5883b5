/* The C interface of a bundle's runtime over no model at all, for tests of the Python side: ids are
 * bytes, a request is answered with its own prompt in a circle (choice i begins i later), and some
 * ids and numbers cause trouble. What a request or an engine was given is told by
 * mlcb_engine_metrics. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "mlcb.h"

#ifndef STUB_ABI_VERSION
#define STUB_ABI_VERSION MLCB_ABI_VERSION
#endif

enum {
  BOS = 256,
  FAILS_IN_STEP = 258,
  ENDS_TEXT = 259,
  VOCAB = 260,
  WINDOW = 100,
  MAX_REQUESTS = 256,
  MAX_EVENTS = 1 << 14,
  MAX_TOP = 20,
  EXPIRES_WAITING = 6, /* as timeout_ms: before the first token */
  EXPIRES_RUNNING = 7, /* after two tokens */
  STEP_NANOSECONDS = 200000
};

struct mlcb_bundle {
  char manifest[64];
};
typedef struct {
  uint64_t id;
  int32_t* prompt;
  size_t count;
  int32_t choice, made, limit, timeout_ms, cancelled, logprobs, top;
  char stop[8];
  int32_t stop_token;
} request;
struct mlcb_engine {
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  pthread_t thread;
  int started;
  request requests[MAX_REQUESTS];
  size_t request_count;
  int32_t max_waiting;
  mlcb_event events[MAX_EVENTS];
  char texts[MAX_EVENTS][64];
  char stops[MAX_EVENTS][8];
  mlcb_token_logprob tops[MAX_EVENTS][MAX_TOP];
  size_t head, tail;
  uint64_t next_id, cancelled, cleared;
  char text[64], stop[8], info[1024], last_request[2048];
  mlcb_token_logprob top[MAX_TOP];
};
struct mlcb_output_parser {
  int tools, reasoning;
  char state; /* 'c'ontent, 'n'ame, 'a'rguments, 'e'nd of a call, 'r'easoning */
  int calls;
  char name[64];
  char* deltas;
};

static __thread char last_error[256];

static mlcb_status fail(mlcb_status status, const char* message) {
  snprintf(last_error, sizeof(last_error), "%s", message);
  return status;
}

static mlcb_status copy_out(const char* data, char* text, size_t capacity, size_t* size) {
  *size = strlen(data);
  if (*size > capacity) return fail(MLCB_ERROR_TOO_SMALL, "too small");
  memcpy(text, data, *size);
  return MLCB_OK;
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

/* Text that holds ECHO: stands for the bytes after it, up to a quotation mark, once each. */
static size_t echoed(const char* text, size_t size, int32_t* ids) {
  size_t count = 0;
  for (size_t i = 0; i < size && text[i] != '"'; ++i) {
    if (text[i] == '\\' && i + 1 < size) ++i;
    if (ids != NULL) ids[count] = (unsigned char)text[i];
    ++count;
  }
  return count;
}

mlcb_status mlcb_tokenize(const mlcb_bundle* bundle, const char* text, size_t text_size,
                          uint32_t flags, int32_t* ids, size_t capacity, size_t* count) {
  (void)bundle;
  const char* mark = strstr(text, "ECHO:");
  if (mark != NULL) {
    mark += 5;
    size_t rest = text_size - (size_t)(mark - text);
    *count = echoed(mark, rest, NULL);
    if (*count > capacity) return fail(MLCB_ERROR_TOO_SMALL, "too small");
    echoed(mark, rest, ids);
    return MLCB_OK;
  }
  size_t bos = (flags & MLCB_TOKENIZE_BOS) != 0;
  *count = 4 * (text_size + bos); /* four times over, so that callers must ask again */
  if (*count > capacity) return fail(MLCB_ERROR_TOO_SMALL, "too small");
  for (size_t i = 0; i < *count; ++i) {
    size_t at = i / 4;
    ids[i] = bos && at == 0 ? BOS : (unsigned char)text[at - bos];
  }
  return MLCB_OK;
}

/* Twenty times each, more than the first guess of a caller; with special tokens once. */
mlcb_status mlcb_detokenize(const mlcb_bundle* bundle, const int32_t* ids, size_t count,
                            uint32_t flags, char* text, size_t capacity, size_t* size) {
  (void)bundle;
  size_t times = flags & MLCB_DETOKENIZE_SPECIAL ? 1 : 20;
  *size = count * times;
  if (*size > capacity) return fail(MLCB_ERROR_TOO_SMALL, "too small");
  for (size_t i = 0; i < *size; ++i) text[i] = (char)ids[i / times];
  return MLCB_OK;
}

/* The conversation's own JSON. */
mlcb_status mlcb_apply_chat_template(const mlcb_bundle* bundle, const char* conversation_json,
                                     char* text, size_t capacity, size_t* size) {
  (void)bundle;
  if (strstr(conversation_json, "REFUSE") != NULL) {
    return fail(MLCB_ERROR_ARGUMENT, "the template says: no");
  }
  return copy_out(conversation_json, text, capacity, size);
}

mlcb_status mlcb_grammar_check(const mlcb_bundle* bundle, int32_t kind, const char* text) {
  (void)bundle;
  if (kind != MLCB_GRAMMAR_JSON && text == NULL) return fail(MLCB_ERROR_ARGUMENT, "no grammar");
  if (text != NULL && strstr(text, "bad") != NULL) {
    return fail(MLCB_ERROR_GRAMMAR, "bad is not good\nwhy: character 1");
  }
  return MLCB_OK;
}

mlcb_status mlcb_tool_grammar(const mlcb_bundle* bundle, const char* tools_json,
                              const char* tool_choice_json, int32_t parallel, char* text,
                              size_t capacity, size_t* size) {
  (void)bundle;
  char grammar[1024];
  snprintf(grammar, sizeof(grammar), "%d %s %s", parallel, tool_choice_json, tools_json);
  return copy_out(grammar, text, capacity, size);
}

/* A call is [name(arguments)], reasoning is {between braces}. */
mlcb_status mlcb_output_parser_create(const mlcb_bundle* bundle, const char* options_json,
                                      mlcb_output_parser** out) {
  (void)bundle;
  *out = calloc(1, sizeof(mlcb_output_parser));
  (*out)->tools = strstr(options_json, "\"tools\": true") != NULL;
  (*out)->reasoning = strstr(options_json, "\"reasoning\": true") != NULL;
  /* A prompt that ends with {"thinks":"{"}} has opened the reasoning. */
  (*out)->state = strstr(options_json, "{\\\"}}\"}") != NULL ? 'r' : 'c';
  return MLCB_OK;
}
void mlcb_output_parser_destroy(mlcb_output_parser* parser) {
  if (parser != NULL) free(parser->deltas);
  free(parser);
}

/* The character that begins at text, which may be several bytes, as JSON. */
static char* put_character(char* out, const char* before, const char* text, const char* after) {
  const char* escape = text[0] == '"' || text[0] == '\\' ? "\\" : "";
  int size = 1;
  while ((text[size] & 0xC0) == 0x80) ++size;
  return out + sprintf(out, "%s%s%.*s%s", before, escape, size, text, after);
}

mlcb_status mlcb_output_parser_push(mlcb_output_parser* parser, const char* text, size_t text_size,
                                    int32_t last, const char** deltas_json) {
  (void)last;
  free(parser->deltas);
  char* out = parser->deltas = malloc(128 * (text_size + 1));
  *deltas_json = out;
  out += sprintf(out, "[");
  for (size_t i = 0; i < text_size; ++i) {
    char c = text[i];
    if ((c & 0xC0) == 0x80) continue; /* went with the character's first byte */
    const char* comma = out[-1] == '[' && out == *deltas_json + 1 ? "" : ",";
    char before[96];
    if (parser->state == 'n') {
      if (c != '(') {
        strncat(parser->name, &c, 1);
        continue;
      }
      parser->state = 'a';
      out += sprintf(out, "%s{\"tool_call\":{\"index\":%d,\"name\":\"%s\",\"arguments\":\"\"}}",
                     comma, parser->calls, parser->name);
    } else if (parser->state == 'a') {
      if (c == ')') {
        parser->state = 'e';
        continue;
      }
      snprintf(before, sizeof(before), "%s{\"tool_call\":{\"index\":%d,\"arguments\":\"", comma,
               parser->calls);
      out = put_character(out, before, text + i, "\"}}");
    } else if (parser->state == 'e') {
      ++parser->calls;
      parser->state = 'c';
    } else if (parser->state == 'r') {
      if (c == '}') {
        parser->state = 'c';
        continue;
      }
      snprintf(before, sizeof(before), "%s{\"reasoning_content\":\"", comma);
      out = put_character(out, before, text + i, "\"}");
    } else if (c == '[' && parser->tools) {
      parser->state = 'n';
      parser->name[0] = 0;
    } else if (c == '{' && parser->reasoning) {
      parser->state = 'r';
    } else {
      snprintf(before, sizeof(before), "%s{\"content\":\"", comma);
      out = put_character(out, before, text + i, "\"}");
    }
  }
  sprintf(out, "]");
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
  mlcb_engine* engine = *out = calloc(1, sizeof(mlcb_engine));
  pthread_mutex_init(&engine->mutex, NULL);
  pthread_cond_init(&engine->changed, NULL);
  engine->next_id = 1;
  engine->max_waiting = options->max_waiting;
  strcpy(engine->last_request, "null");
  snprintf(
      engine->info, sizeof(engine->info),
      "{\"variant\":\"stub\",\"activations\":\"%s\",\"threads\":%d,\"batch\":%d,\"kv_tokens\":%lld,"
      "\"kv_bytes\":%llu,\"mode\":\"%s\",\"max_waiting\":%d,\"prefix_cache\":%d,"
      "\"speculation\":\"%s\",\"speculation_tokens\":%d,\"draft\":%d,\"profile\":%d,"
      "\"kv\":{\"page_size\":16,\"pages\":28},\"limits\":{\"context_window_size\":100,\"max_batch_"
      "size\":4,\"max_waiting\":0,"
      "\"prefill_chunk_size\":32},\"memory\":{\"arena_bytes\":4096,\"draft_bytes\":0,"
      "\"kv_bytes\":19200,\"kv_bytes_per_token\":192,\"weights_bytes\":32}}",
      options->activations ? options->activations : "int8", options->threads,
      options->max_batch_size, (long long)options->kv_tokens, (unsigned long long)options->kv_bytes,
      options->mode ? options->mode : "server", options->max_waiting, !options->no_prefix_cache,
      options->speculation ? options->speculation : "none", options->speculation_tokens,
      options->draft != NULL, options->profile);
  return MLCB_OK;
}

void mlcb_engine_destroy(mlcb_engine* engine) {
  if (engine == NULL) return;
  mlcb_engine_stop(engine);
  for (size_t i = 0; i < engine->request_count; ++i) free(engine->requests[i].prompt);
  free(engine);
}
const char* mlcb_engine_info(const mlcb_engine* engine) { return engine->info; }

static void record(mlcb_engine* engine, const mlcb_request_params* params) {
  char bias[256] = "", stop[256] = "", stop_ids[256] = "";
  for (size_t i = 0; i < params->logit_bias_count; ++i) {
    float value = params->logit_bias[i].bias;
    char number[32];
    snprintf(number, sizeof(number), value < -1e30f ? "\"-inf\"" : "%g", value);
    sprintf(bias + strlen(bias), "%s[%d,%s]", i ? "," : "", params->logit_bias[i].token_id, number);
  }
  for (size_t i = 0; i < params->stop_count; ++i) {
    sprintf(stop + strlen(stop), "%s\"%s\"", i ? "," : "", params->stop[i]);
  }
  for (size_t i = 0; i < params->stop_token_count; ++i) {
    sprintf(stop_ids + strlen(stop_ids), "%s%d", i ? "," : "", params->stop_token_ids[i]);
  }
  char grammar[768] = "";
  for (const char* c = params->grammar; c != NULL && *c; ++c) {
    if (*c == '"' || *c == '\\') strcat(grammar, "\\");
    strncat(grammar, c, 1);
  }
  snprintf(engine->last_request, sizeof(engine->last_request),
           "{\"tokens\":%zu,\"n\":%d,\"max_tokens\":%d,\"temperature\":%g,\"top_p\":%g,"
           "\"top_k\":%d,\"min_p\":%g,\"repetition_penalty\":%g,\"presence_penalty\":%g,"
           "\"frequency_penalty\":%g,\"seed\":%llu,\"logit_bias\":[%s],\"logprobs\":%d,"
           "\"top_logprobs\":%d,\"ignore_eos\":%d,\"stop\":[%s],\"stop_token_ids\":[%s],"
           "\"timeout_ms\":%d,\"grammar_kind\":%d,\"grammar\":\"%s\"}",
           params->token_count, params->n, params->max_tokens, params->temperature, params->top_p,
           params->top_k, params->min_p, params->repetition_penalty, params->presence_penalty,
           params->frequency_penalty, (unsigned long long)params->seed, bias, params->logprobs,
           params->top_logprobs, params->ignore_eos, stop, stop_ids, params->timeout_ms,
           params->grammar_kind, grammar);
}

mlcb_status mlcb_request_submit(mlcb_engine* engine, const mlcb_request_params* params,
                                uint64_t* request_id) {
  if (params->struct_size != sizeof(*params)) {
    return fail(MLCB_ERROR_ARGUMENT, "struct_size of mlcb_request_params");
  }
  if (params->temperature < 0) return fail(MLCB_ERROR_ARGUMENT, "temperature is negative");
  if (params->token_count > WINDOW) return fail(MLCB_ERROR_TOO_LONG, "101 tokens do not fit 100");
  if (params->grammar != NULL && strstr(params->grammar, "bad") != NULL) {
    return fail(MLCB_ERROR_GRAMMAR, "bad is not good");
  }
  int32_t n = params->n > 0 ? params->n : 1;
  mlcb_status status = MLCB_OK;
  pthread_mutex_lock(&engine->mutex);
  if (engine->max_waiting > 0 && engine->request_count >= (size_t)engine->max_waiting) {
    status = fail(MLCB_ERROR_BUSY, "the queue is full");
  } else if (engine->request_count + (size_t)n > MAX_REQUESTS) {
    status = fail(MLCB_ERROR_INTERNAL, "too much for the stub");
  } else {
    record(engine, params);
    *request_id = engine->next_id++;
    for (int32_t choice = 0; choice < n; ++choice) {
      request* slot = &engine->requests[engine->request_count++];
      memset(slot, 0, sizeof(*slot));
      slot->id = *request_id;
      slot->choice = choice;
      slot->count = params->token_count;
      slot->limit = params->max_tokens > 0 ? params->max_tokens : WINDOW - (int32_t)slot->count;
      slot->timeout_ms = params->timeout_ms;
      slot->logprobs = params->logprobs;
      slot->top = params->top_logprobs;
      slot->stop_token = params->stop_token_count > 0 ? params->stop_token_ids[0] : -1;
      if (params->stop_count > 0) snprintf(slot->stop, sizeof(slot->stop), "%s", params->stop[0]);
      slot->prompt = malloc(sizeof(int32_t) * (params->token_count + 1));
      memcpy(slot->prompt, params->token_ids, sizeof(int32_t) * params->token_count);
    }
    pthread_cond_broadcast(&engine->changed);
  }
  pthread_mutex_unlock(&engine->mutex);
  return status;
}

mlcb_status mlcb_request_cancel(mlcb_engine* engine, uint64_t request_id) {
  int found = 0;
  pthread_mutex_lock(&engine->mutex);
  for (size_t i = 0; i < engine->request_count; ++i) {
    if (engine->requests[i].id == request_id) engine->requests[i].cancelled = found = 1;
  }
  engine->cancelled += (uint64_t)found;
  pthread_cond_broadcast(&engine->changed);
  pthread_mutex_unlock(&engine->mutex);
  return found ? MLCB_OK : fail(MLCB_ERROR_NOT_FOUND, "no such request");
}

static void emit(mlcb_engine* engine, const request* r, int32_t kind, int32_t token, int32_t reason,
                 int32_t status, const char* text) {
  size_t at = engine->tail++ % MAX_EVENTS;
  mlcb_event* event = &engine->events[at];
  memset(event, 0, sizeof(*event));
  event->request_id = r->id;
  event->choice = r->choice;
  event->kind = kind;
  event->token_id = token;
  event->finish_reason = reason;
  event->status = status;
  snprintf(engine->texts[at], sizeof(engine->texts[at]), "%s", text);
  engine->stops[at][0] = 0;
  if (kind == MLCB_EVENT_TOKEN && r->logprobs) {
    event->logprob = -(float)token / 64;
    event->top_logprob_count = (size_t)r->top;
    for (int32_t i = 0; i < r->top; ++i) {
      engine->tops[at][i].token_id = token + i;
      engine->tops[at][i].logprob = event->logprob - (float)i;
    }
  }
  if (kind == MLCB_EVENT_DONE) {
    if (reason == MLCB_FINISH_STOP) strcpy(engine->stops[at], r->stop);
    event->prompt_tokens = (int32_t)r->count;
    event->cached_tokens = 1;
    event->completion_tokens = r->made;
    event->queue_seconds = 0.25;
    event->first_token_seconds = 0.5;
    event->total_seconds = 1 + r->choice;
  }
}

/* Whether the choice has ended. */
static int step_one(mlcb_engine* engine, request* r) {
  int32_t id = r->prompt[(size_t)(r->choice + r->made) % r->count];
  if (r->cancelled) {
    emit(engine, r, MLCB_EVENT_DONE, -1, MLCB_FINISH_CANCEL, 0, "");
    return 1;
  }
  if (r->timeout_ms == EXPIRES_WAITING) {
    if (r->choice == 0) {
      emit(engine, r, MLCB_EVENT_ERROR, -1, 0, MLCB_ERROR_DEADLINE, "it waited too long");
    }
    return 1;
  }
  if (id == FAILS_IN_STEP) {
    emit(engine, r, MLCB_EVENT_ERROR, -1, 0, MLCB_ERROR_KERNEL, "a kernel failed");
    return 1;
  }
  char text[3] = {(char)(id < 128 ? id : '?'), 0, 0};
  if (id == ENDS_TEXT || id == r->stop_token || (r->stop[0] && text[0] == r->stop[0])) {
    if (id != r->stop[0]) r->stop[0] = 0;
    emit(engine, r, MLCB_EVENT_DONE, -1, MLCB_FINISH_STOP, 0, "");
    return 1;
  }
  if (id == 0xC3) text[0] = 0; /* the first byte of a character: held back */
  if (id == 0xA9) strcpy(text, "\xC3\xA9");
  ++r->made;
  emit(engine, r, MLCB_EVENT_TOKEN, id, 0, 0, text);
  int late = r->timeout_ms == EXPIRES_RUNNING && r->made == 2;
  if (!late && r->made < r->limit) return 0;
  emit(engine, r, MLCB_EVENT_DONE, -1, late ? MLCB_FINISH_DEADLINE : MLCB_FINISH_LENGTH, 0, "");
  return 1;
}

static void step_all(mlcb_engine* engine) {
  size_t kept = 0;
  for (size_t i = 0; i < engine->request_count; ++i) {
    request* r = &engine->requests[i];
    if (step_one(engine, r)) {
      free(r->prompt);
    } else {
      engine->requests[kept++] = *r;
    }
  }
  engine->request_count = kept;
  pthread_cond_broadcast(&engine->changed);
}

mlcb_status mlcb_engine_step(mlcb_engine* engine, int32_t* busy) {
  pthread_mutex_lock(&engine->mutex);
  step_all(engine);
  *busy = engine->request_count > 0;
  pthread_mutex_unlock(&engine->mutex);
  return MLCB_OK;
}

static void* run(void* argument) {
  mlcb_engine* engine = argument;
  pthread_mutex_lock(&engine->mutex);
  while (engine->started) {
    if (engine->request_count == 0) {
      pthread_cond_wait(&engine->changed, &engine->mutex);
      continue;
    }
    step_all(engine);
    pthread_mutex_unlock(&engine->mutex);
    struct timespec pause = {0, STEP_NANOSECONDS};
    nanosleep(&pause, NULL);
    pthread_mutex_lock(&engine->mutex);
  }
  pthread_mutex_unlock(&engine->mutex);
  return NULL;
}

mlcb_status mlcb_engine_start(mlcb_engine* engine) {
  if (engine->started) return MLCB_OK;
  engine->started = 1;
  pthread_create(&engine->thread, NULL, run, engine);
  return MLCB_OK;
}
mlcb_status mlcb_engine_stop(mlcb_engine* engine) {
  if (!engine->started) return MLCB_OK;
  pthread_mutex_lock(&engine->mutex);
  engine->started = 0;
  pthread_cond_broadcast(&engine->changed);
  pthread_mutex_unlock(&engine->mutex);
  pthread_join(engine->thread, NULL);
  return MLCB_OK;
}

mlcb_status mlcb_engine_poll(mlcb_engine* engine, mlcb_event* event, int32_t timeout_ms) {
  if (event->struct_size != sizeof(*event)) {
    return fail(MLCB_ERROR_ARGUMENT, "struct_size of mlcb_event");
  }
  if (timeout_ms != 0 && !engine->started) return fail(MLCB_ERROR_ARGUMENT, "nothing would come");
  event->kind = MLCB_EVENT_NONE;
  struct timespec until;
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_nsec += (long)timeout_ms * 1000000;
  until.tv_sec += until.tv_nsec / 1000000000;
  until.tv_nsec %= 1000000000;
  pthread_mutex_lock(&engine->mutex);
  while (engine->head == engine->tail && timeout_ms != 0) {
    if (pthread_cond_timedwait(&engine->changed, &engine->mutex, &until) != 0) break;
  }
  if (engine->head != engine->tail) {
    size_t at = engine->head++ % MAX_EVENTS;
    *event = engine->events[at];
    event->struct_size = sizeof(*event);
    memcpy(engine->text, engine->texts[at], sizeof(engine->text));
    memcpy(engine->stop, engine->stops[at], sizeof(engine->stop));
    memcpy(engine->top, engine->tops[at], sizeof(engine->top));
    event->text = engine->text;
    event->text_size = strlen(engine->text);
    event->top_logprobs = engine->top;
    event->stop_string = engine->stop[0] ? engine->stop : NULL;
  }
  pthread_mutex_unlock(&engine->mutex);
  return MLCB_OK;
}

mlcb_status mlcb_engine_metrics(mlcb_engine* engine, const char* format, char* text,
                                size_t capacity, size_t* size) {
  static __thread char figures[4096];
  pthread_mutex_lock(&engine->mutex);
  if (strcmp(format, "json") == 0) {
    snprintf(figures, sizeof(figures),
             "{\"running\":%zu,\"cancelled\":%llu,\"cleared\":%llu,\"last_request\":%s}",
             engine->request_count, (unsigned long long)engine->cancelled,
             (unsigned long long)engine->cleared, engine->last_request);
  } else {
    snprintf(figures, sizeof(figures), "mlcb_running %zu\n", engine->request_count);
  }
  pthread_mutex_unlock(&engine->mutex);
  return copy_out(figures, text, capacity, size);
}

mlcb_status mlcb_engine_clear_cache(mlcb_engine* engine) {
  ++engine->cleared;
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
