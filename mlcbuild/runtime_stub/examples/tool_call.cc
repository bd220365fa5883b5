// Lets a model call a tool: its text is held to the form of a call, and taken apart as it comes.
//
//   c++ -std=c++17 tool_call.cc -I BUNDLE/include -L BUNDLE/lib -lmlcb -Wl,-rpath,BUNDLE/lib -o
//   call
//   ./call BUNDLE
//
// Prints the deltas, one JSON array a line. Exit code 3: the bundle has no convention for tools.
#include <cstdint>
#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "mlcb.h"

namespace {

struct Failure : std::runtime_error {
  mlcb_status status;
  Failure(mlcb_status code, const std::string& message)
      : std::runtime_error(message), status(code) {}
};

void check(mlcb_status status, const char* what) {
  if (status == MLCB_OK) return;
  throw Failure(status, std::string(what) + ": " + mlcb_last_error());
}

struct Close {
  void operator()(mlcb_bundle* bundle) const { mlcb_bundle_close(bundle); }
  void operator()(mlcb_engine* engine) const { mlcb_engine_destroy(engine); }
  void operator()(mlcb_output_parser* parser) const { mlcb_output_parser_destroy(parser); }
};
template <typename Handle>
using Owner = std::unique_ptr<Handle, Close>;

// Calls a function that fills a buffer: once for the size, once for the text.
template <typename Fill>
std::string filled(Fill fill, const char* what) {
  size_t size = 0;
  const mlcb_status status = fill(nullptr, 0, &size);
  if (status != MLCB_ERROR_TOO_SMALL) check(status, what);
  std::string text(size, '\0');
  check(fill(&text[0], size, &size), what);
  return text;
}

const char* const kTools = R"([{"type": "function", "function": {
    "name": "get_weather", "description": "The weather in a city",
    "parameters": {"type": "object", "additionalProperties": false,
                   "properties": {"city": {"type": "string", "maxLength": 20}},
                   "required": ["city"]}}}])";

std::vector<int32_t> prompt_with_tools(const mlcb_bundle* bundle) {
  const std::string conversation =
      R"({"messages": [{"role": "user", "content": "What is the weather in Paris?"}], "tools": )" +
      std::string(kTools) + "}";
  const std::string text = filled(
      [&](char* out, size_t capacity, size_t* size) {
        return mlcb_apply_chat_template(bundle, conversation.c_str(), out, capacity, size);
      },
      "the chat template");
  std::vector<int32_t> ids(text.size());
  size_t count = 0;
  check(mlcb_tokenize(bundle, text.data(), text.size(), MLCB_TOKENIZE_SPECIAL, ids.data(),
                      ids.size(), &count),
        "the tokenizer");
  ids.resize(count);
  return ids;
}

void push(mlcb_output_parser* parser, const mlcb_event& event) {
  const char* deltas = nullptr;
  const int32_t last = event.kind == MLCB_EVENT_DONE ? 1 : 0;
  check(mlcb_output_parser_push(parser, event.text, event.text_size, last, &deltas), "the parser");
  if (std::string(deltas) != "[]") std::printf("%s\n", deltas);
}

void run(const char* path) {
  mlcb_bundle* opened = nullptr;
  check(mlcb_bundle_open(path, nullptr, &opened), "the bundle");
  const Owner<mlcb_bundle> bundle(opened);

  const std::string grammar = filled(
      [&](char* out, size_t capacity, size_t* size) {
        return mlcb_tool_grammar(bundle.get(), kTools, "\"required\"", 0, out, capacity, size);
      },
      "the grammar of a call");
  mlcb_output_parser* created_parser = nullptr;
  check(mlcb_output_parser_create(bundle.get(), R"({"tools": true})", &created_parser),
        "the parser");
  const Owner<mlcb_output_parser> parser(created_parser);

  mlcb_engine* created = nullptr;
  check(mlcb_engine_create(bundle.get(), nullptr, &created), "the engine");
  const Owner<mlcb_engine> engine(created);
  const std::vector<int32_t> ids = prompt_with_tools(bundle.get());
  mlcb_request_params params = {};
  params.struct_size = sizeof(params);
  params.token_ids = ids.data();
  params.token_count = ids.size();
  params.max_tokens = 128;
  params.grammar_kind = MLCB_GRAMMAR_STRUCTURE;
  params.grammar = grammar.c_str();
  uint64_t id = 0;
  check(mlcb_request_submit(engine.get(), &params, &id), "the request");

  for (;;) {
    mlcb_event event = {};
    event.struct_size = sizeof(event);
    check(mlcb_engine_poll(engine.get(), &event, 0), "the poll");
    if (event.kind == MLCB_EVENT_ERROR) {
      throw Failure(static_cast<mlcb_status>(event.status), event.text);
    }
    if (event.kind != MLCB_EVENT_NONE) push(parser.get(), event);
    if (event.kind == MLCB_EVENT_DONE) return;
    int32_t busy = 0;
    if (event.kind == MLCB_EVENT_NONE) check(mlcb_engine_step(engine.get(), &busy), "a step");
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: tool_call BUNDLE\n");
    return 2;
  }
  try {
    run(argv[1]);
  } catch (const Failure& failure) {
    std::fprintf(stderr, "%s\n", failure.what());
    return failure.status == MLCB_ERROR_UNSUPPORTED ? 3 : 1;
  }
  return 0;
}
