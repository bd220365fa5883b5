/* Asks a bundle one question and prints the answer as it comes.
 *
 *   cc generate.c -I BUNDLE/include -L BUNDLE/lib -lmlcb -Wl,-rpath,BUNDLE/lib -o generate
 *   ./generate BUNDLE "What is the capital of France?"
 *
 * Everything happens on this one thread. The figures at the end go to stderr. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mlcb.h"

/* Says what failed, and what the runtime has to say about it. */
static int failed(const char* what, mlcb_status status) {
  fprintf(stderr, "%s: status %d: %s\n", what, (int)status, mlcb_last_error());
  return 0;
}

/* [{"role": "user", "content": question}] as JSON; the caller frees it. */
static char* conversation_of(const char* question) {
  static const char begin[] = "[{\"role\": \"user\", \"content\": \"";
  static const char end[] = "\"}]";
  const char* from;
  char* to;
  char* text = malloc(sizeof(begin) + 6 * strlen(question) + sizeof(end));
  if (text == NULL) return NULL;
  strcpy(text, begin);
  to = text + strlen(text);
  for (from = question; *from != '\0'; ++from) {
    if (*from == '"' || *from == '\\') {
      *to++ = '\\';
      *to++ = *from;
    } else if ((unsigned char)*from < 0x20) {
      to += sprintf(to, "\\u%04x", (unsigned)*from);
    } else {
      *to++ = *from;
    }
  }
  strcpy(to, end);
  return text;
}

/* The conversation in the model's own form. The first call only asks for the size. */
static char* render(const mlcb_bundle* bundle, const char* conversation, size_t* size) {
  char* text;
  mlcb_status status = mlcb_apply_chat_template(bundle, conversation, NULL, 0, size);
  if (status != MLCB_OK && status != MLCB_ERROR_TOO_SMALL) {
    failed("the chat template", status);
    return NULL;
  }
  text = malloc(*size + 1);
  if (text == NULL) return NULL;
  status = mlcb_apply_chat_template(bundle, conversation, text, *size, size);
  if (status != MLCB_OK) {
    failed("the chat template", status);
    free(text);
    return NULL;
  }
  return text;
}

/* Its tokens. There are never more of them than bytes. */
static int32_t* tokens_of(const mlcb_bundle* bundle, const char* text, size_t size, size_t* count) {
  mlcb_status status;
  int32_t* ids = malloc((size + 1) * sizeof(*ids));
  if (ids == NULL) return NULL;
  status = mlcb_tokenize(bundle, text, size, MLCB_TOKENIZE_SPECIAL, ids, size + 1, count);
  if (status != MLCB_OK) {
    failed("the tokenizer", status);
    free(ids);
    return NULL;
  }
  return ids;
}

static const char* reason_name(int32_t reason) {
  switch (reason) {
    case MLCB_FINISH_STOP:
      return "the model was done";
    case MLCB_FINISH_LENGTH:
      return "the limit was reached";
    case MLCB_FINISH_CANCEL:
      return "cancelled";
    case MLCB_FINISH_DEADLINE:
      return "the time was over";
    default:
      return "unknown";
  }
}

static void print_figures(const mlcb_event* event) {
  const double seconds = event->total_seconds - event->first_token_seconds;
  fprintf(stderr, "\n[%s; prompt %d tokens (%d cached), answer %d tokens;",
          reason_name(event->finish_reason), (int)event->prompt_tokens, (int)event->cached_tokens,
          (int)event->completion_tokens);
  fprintf(stderr, " first token after %.3f s, %.1f tokens/s]\n", event->first_token_seconds,
          seconds > 0 ? (event->completion_tokens - 1) / seconds : 0.0);
}

/* Steps until the request has ended, printing what comes; 1 if it went well. */
static int stream(mlcb_engine* engine) {
  mlcb_event event;
  int32_t busy;
  mlcb_status status;
  for (;;) {
    status = mlcb_engine_step(engine, &busy);
    if (status != MLCB_OK) return failed("a step", status);
    for (;;) {
      memset(&event, 0, sizeof(event));
      event.struct_size = sizeof(event);
      status = mlcb_engine_poll(engine, &event, 0);
      if (status != MLCB_OK) return failed("the poll", status);
      if (event.kind == MLCB_EVENT_NONE) break;
      if (event.kind == MLCB_EVENT_ERROR) {
        fprintf(stderr, "the request: status %d: %s\n", (int)event.status, event.text);
        return 0;
      }
      fwrite(event.text, 1, event.text_size, stdout);
      fflush(stdout);
      if (event.kind == MLCB_EVENT_DONE) {
        print_figures(&event);
        return 1;
      }
    }
  }
}

static int answer(mlcb_engine* engine, const int32_t* ids, size_t count) {
  mlcb_request_params params;
  mlcb_status status;
  uint64_t id;
  memset(&params, 0, sizeof(params));
  params.struct_size = sizeof(params);
  params.token_ids = ids;
  params.token_count = count;
  params.max_tokens = 256;
  params.temperature = 0; /* greedy */
  status = mlcb_request_submit(engine, &params, &id);
  if (status != MLCB_OK) return failed("the request", status);
  return stream(engine);
}

static int ask(mlcb_bundle* bundle, const char* question) {
  size_t size = 0, count = 0;
  mlcb_engine* engine = NULL;
  char* conversation = conversation_of(question);
  char* text = conversation != NULL ? render(bundle, conversation, &size) : NULL;
  int32_t* ids = text != NULL ? tokens_of(bundle, text, size, &count) : NULL;
  int good = 0;
  if (ids != NULL) {
    const mlcb_status status = mlcb_engine_create(bundle, NULL, &engine);
    good = status == MLCB_OK ? answer(engine, ids, count) : failed("the engine", status);
  }
  mlcb_engine_destroy(engine);
  free(ids);
  free(text);
  free(conversation);
  return good;
}

int main(int argc, char** argv) {
  mlcb_bundle* bundle = NULL;
  mlcb_status status;
  int good;
  if (argc != 3) {
    fprintf(stderr, "usage: generate BUNDLE QUESTION\n");
    return 2;
  }
  if (mlcb_abi_version() != MLCB_ABI_VERSION) {
    fprintf(stderr, "the library has ABI version %u, this program was compiled for %u\n",
            (unsigned)mlcb_abi_version(), (unsigned)MLCB_ABI_VERSION);
    return 1;
  }
  status = mlcb_bundle_open(argv[1], NULL, &bundle);
  if (status != MLCB_OK) {
    failed("the bundle", status);
    return 1;
  }
  good = ask(bundle, argv[2]);
  mlcb_bundle_close(bundle);
  return good ? 0 : 1;
}
