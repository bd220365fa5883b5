// Runs several requests over one bundle at once: the engine works on a thread of its own, this one
// waits for events. One request is held to a JSON schema, one is cancelled after a few tokens.
//
//   c++ -std=c++17 batch.cc -I BUNDLE/include -L BUNDLE/lib -lmlcb -Wl,-rpath,BUNDLE/lib -o batch
//   ./batch BUNDLE
//
// Prints one line of JSON for each request, in the order in which they end.
#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "mlcb.h"

namespace {

void check(mlcb_status status, const char* what) {
  if (status == MLCB_OK) return;
  throw std::runtime_error(std::string(what) + ": " + mlcb_last_error());
}

struct CloseBundle {
  void operator()(mlcb_bundle* bundle) const { mlcb_bundle_close(bundle); }
};
struct DestroyEngine {
  void operator()(mlcb_engine* engine) const { mlcb_engine_destroy(engine); }
};
using Bundle = std::unique_ptr<mlcb_bundle, CloseBundle>;
using Engine = std::unique_ptr<mlcb_engine, DestroyEngine>;

Bundle open_bundle(const char* path) {
  mlcb_bundle* bundle = nullptr;
  check(mlcb_bundle_open(path, nullptr, &bundle), "the bundle");
  return Bundle(bundle);
}

Engine start_engine(mlcb_bundle* bundle) {
  mlcb_engine_options options = {};
  options.struct_size = sizeof(options);
  options.mode = "local";    // at most four requests at once
  options.max_waiting = 16;  // beyond: MLCB_ERROR_BUSY
  mlcb_engine* engine = nullptr;
  check(mlcb_engine_create(bundle, &options, &engine), "the engine");
  Engine owner(engine);
  check(mlcb_engine_start(engine), "the engine's thread");
  return owner;
}

std::vector<int32_t> tokenize_chat(const mlcb_bundle* bundle, const std::string& conversation) {
  size_t size = 0;
  mlcb_status status = mlcb_apply_chat_template(bundle, conversation.c_str(), nullptr, 0, &size);
  if (status != MLCB_ERROR_TOO_SMALL) check(status, "the chat template");
  std::string text(size, '\0');
  check(mlcb_apply_chat_template(bundle, conversation.c_str(), &text[0], size, &size),
        "the chat template");
  std::vector<int32_t> ids(size);  // never more tokens than bytes
  size_t count = 0;
  check(mlcb_tokenize(bundle, text.data(), size, MLCB_TOKENIZE_SPECIAL, ids.data(), size, &count),
        "the tokenizer");
  ids.resize(count);
  return ids;
}

mlcb_request_params request_for(const std::vector<int32_t>& ids) {
  mlcb_request_params params = {};
  params.struct_size = sizeof(params);
  params.token_ids = ids.data();  // copied by mlcb_request_submit
  params.token_count = ids.size();
  params.max_tokens = 48;
  return params;
}

uint64_t submit(mlcb_engine* engine, const mlcb_request_params& params) {
  uint64_t id = 0;
  check(mlcb_request_submit(engine, &params, &id), "the request");
  return id;
}

struct Answer {
  std::string name, text;
  int tokens = 0;
};

std::string quote(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += std::string("\\") + c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char escaped[8];
      std::snprintf(escaped, sizeof(escaped), "\\u%04x", static_cast<unsigned>(c));
      out += escaped;
    } else {
      out += c;
    }
  }
  return out + "\"";
}

const char* reason_name(int32_t reason) {
  static const char* const names[] = {"none", "stop", "length", "cancel", "deadline"};
  return reason >= 0 && reason < 5 ? names[reason] : "unknown";
}

void print_answer(const Answer& answer, const char* reason) {
  std::printf("{\"name\": %s, \"finish_reason\": \"%s\", \"text\": %s}\n",
              quote(answer.name).c_str(), reason, quote(answer.text).c_str());
}

// Takes events until every request has ended.
void collect(mlcb_engine* engine, std::map<uint64_t, Answer> answers, uint64_t unwanted) {
  while (!answers.empty()) {
    mlcb_event event = {};
    event.struct_size = sizeof(event);
    check(mlcb_engine_poll(engine, &event, -1), "the poll");
    if (event.kind == MLCB_EVENT_NONE) continue;  // somebody stopped the engine
    Answer& answer = answers[event.request_id];
    if (event.kind == MLCB_EVENT_ERROR) {
      throw std::runtime_error(answer.name + ": " + event.text);
    }
    answer.text.append(event.text, event.text_size);
    if (event.kind == MLCB_EVENT_TOKEN && event.request_id == unwanted && ++answer.tokens == 3) {
      // Its DONE event comes with the next step; it may have ended by itself meanwhile.
      const mlcb_status status = mlcb_request_cancel(engine, unwanted);
      if (status != MLCB_ERROR_NOT_FOUND) check(status, "the cancellation");
    }
    if (event.kind == MLCB_EVENT_DONE) {
      print_answer(answer, reason_name(event.finish_reason));
      answers.erase(event.request_id);
    }
  }
}

std::string metrics(mlcb_engine* engine, const char* format) {
  size_t size = 0;
  std::string text;
  // What there is to tell may grow between two calls.
  while (mlcb_engine_metrics(engine, format, &text[0], text.size(), &size) != MLCB_OK) {
    if (size <= text.size()) check(MLCB_ERROR_INTERNAL, "the metrics");
    text.resize(size);
  }
  text.resize(size);
  return text;
}

void run(const char* path) {
  const Bundle bundle = open_bundle(path);
  const Engine engine = start_engine(bundle.get());
  std::map<uint64_t, Answer> answers;

  const std::vector<int32_t> greeting =
      tokenize_chat(bundle.get(), R"([{"role": "user", "content": "Say hello in French."}])");
  mlcb_request_params params = request_for(greeting);
  params.temperature = 0.8f;
  params.top_p = 0.95f;
  params.seed = 7;  // the same seed gives the same text, whatever runs beside it
  answers[submit(engine.get(), params)].name = "greeting";

  const std::vector<int32_t> question = tokenize_chat(
      bundle.get(), R"([{"role": "user", "content": "What is the capital of France?"}])");
  params = request_for(question);
  params.grammar_kind = MLCB_GRAMMAR_JSON_SCHEMA;
  params.grammar = R"({"type": "object", "additionalProperties": false,
                       "properties": {"capital": {"enum": ["Berlin", "Paris", "Rome"]},
                                      "is_in_europe": {"type": "boolean"}},
                       "required": ["capital", "is_in_europe"]})";
  answers[submit(engine.get(), params)].name = "schema";

  const std::vector<int32_t> endless =
      tokenize_chat(bundle.get(), R"([{"role": "user", "content": "Count to a thousand."}])");
  params = request_for(endless);
  params.max_tokens = 0;  // as many as the context window holds
  params.ignore_eos = 1;
  const uint64_t unwanted = submit(engine.get(), params);
  answers[unwanted].name = "cancelled";

  collect(engine.get(), std::move(answers), unwanted);
  std::fprintf(stderr, "%s\n", metrics(engine.get(), "json").c_str());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: batch BUNDLE\n");
    return 2;
  }
  try {
    run(argv[1]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
