// The C interface of mlcb.h over the C++ parts.
#include "mlcb.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>

#include "abi/guard.h"
#include "core/error.h"
#include "core/json.h"
#include "engine/engine.h"
#include "engine/grammars.h"
#include "exec/bundle.h"
#include "text/output_parser.h"

struct mlcb_bundle {
  std::shared_ptr<const mlcb::Bundle> bundle;
  std::shared_ptr<mlcb::Grammars> grammars;
};

struct mlcb_output_parser {
  std::unique_ptr<mlcb::OutputParser> parser;
  std::string deltas;  // of the last push
};

struct mlcb_engine {
  mlcb::Engine engine;
  std::mutex event_mutex;  // guards event
  mlcb::Event event;       // the last one handed out: its text belongs to the caller's event
  std::vector<mlcb_token_logprob> top;  // its log probabilities

  mlcb_engine(const mlcb_bundle& bundle, const mlcb::EngineOptions& options)
      : engine(bundle.bundle, bundle.grammars, options) {}
};

namespace {

using mlcb::Error;
using mlcb::guarded;
using mlcb::require;

thread_local std::string last_error;

// A caller built against a later header may pass a longer struct: what this version does not know
// is left alone. first_size is the struct's size in the first version of the interface.
template <typename Struct>
Struct copy_struct(const Struct* given, size_t first_size, const char* name) {
  Struct copy;
  std::memset(&copy, 0, sizeof(copy));
  if (given == nullptr) return copy;
  if (given->struct_size < first_size) {
    throw Error(MLCB_ERROR_ARGUMENT, std::string(name) + ": struct_size is " +
                                         std::to_string(given->struct_size) + ", at least " +
                                         std::to_string(first_size) + " is needed");
  }
  std::memcpy(&copy, given, std::min(given->struct_size, sizeof(copy)));
  return copy;
}

// Copies bytes out; *size is set in any case.
void copy_out(const std::string& bytes, char* text, size_t capacity, size_t* size) {
  *size = bytes.size();
  if (bytes.size() > capacity) {
    throw Error(MLCB_ERROR_TOO_SMALL, "the buffer holds " + std::to_string(capacity) + " bytes, " +
                                          std::to_string(bytes.size()) + " are needed");
  }
  if (!bytes.empty()) std::memcpy(text, bytes.data(), bytes.size());
}

std::string or_empty(const char* text) { return text != nullptr ? text : ""; }

mlcb::RequestOptions read_request(const mlcb_request_params* given) {
  const mlcb_request_params params =
      copy_struct(given, sizeof(mlcb_request_params), "mlcb_request_params");
  require(params.token_ids != nullptr || params.token_count == 0, "token_ids is NULL");
  require(params.stop != nullptr || params.stop_count == 0, "stop is NULL");
  require(params.logit_bias != nullptr || params.logit_bias_count == 0, "logit_bias is NULL");
  require(params.stop_token_ids != nullptr || params.stop_token_count == 0,
          "stop_token_ids is NULL");
  require(params.top_logprobs >= 0, "top_logprobs must not be negative");
  require(params.grammar != nullptr || params.grammar_kind == MLCB_GRAMMAR_NONE ||
              params.grammar_kind == MLCB_GRAMMAR_JSON,
          "grammar is NULL");
  mlcb::RequestOptions options;
  options.token_ids.assign(params.token_ids, params.token_ids + params.token_count);
  options.n = params.n == 0 ? 1 : params.n;
  options.max_tokens = params.max_tokens;
  mlcb::SamplingParams& sampling = options.sampling;
  sampling.temperature = params.temperature;
  sampling.top_p = params.top_p == 0 ? 1.0f : params.top_p;
  sampling.top_k = params.top_k;
  sampling.min_p = params.min_p;
  sampling.repetition_penalty = params.repetition_penalty == 0 ? 1.0f : params.repetition_penalty;
  sampling.presence_penalty = params.presence_penalty;
  sampling.frequency_penalty = params.frequency_penalty;
  sampling.seed = params.seed;
  for (size_t i = 0; i < params.logit_bias_count; ++i) {
    sampling.logit_bias.push_back({params.logit_bias[i].token_id, params.logit_bias[i].bias});
  }
  sampling.top_logprobs = params.logprobs != 0 ? params.top_logprobs : -1;
  options.ignore_eos = params.ignore_eos != 0;
  for (size_t i = 0; i < params.stop_count; ++i) {
    require(params.stop[i] != nullptr, "a stop string is NULL");
    options.stop.emplace_back(params.stop[i]);
  }
  options.stop_token_ids.assign(params.stop_token_ids,
                                params.stop_token_ids + params.stop_token_count);
  options.timeout_ms = params.timeout_ms;
  options.grammar_kind = params.grammar_kind;
  options.grammar = or_empty(params.grammar);
  return options;
}

mlcb::EngineOptions read_engine_options(const mlcb_engine_options* given) {
  const mlcb_engine_options copy =
      copy_struct(given, sizeof(mlcb_engine_options), "mlcb_engine_options");
  mlcb::EngineOptions wishes;
  wishes.threads = copy.threads;
  wishes.max_batch_size = copy.max_batch_size;
  wishes.kv_tokens = copy.kv_tokens;
  wishes.kv_bytes = copy.kv_bytes;
  wishes.mode = or_empty(copy.mode);
  wishes.max_waiting = copy.max_waiting;
  wishes.prefix_cache = copy.no_prefix_cache == 0;
  wishes.speculation = or_empty(copy.speculation);
  wishes.speculation_tokens = copy.speculation_tokens;
  if (copy.draft != nullptr) wishes.draft = copy.draft->bundle;
  wishes.profile = copy.profile != 0;
  wishes.activations = or_empty(copy.activations);
  wishes.variant = or_empty(copy.variant);
  require(
      wishes.activations.empty() || wishes.activations == "int8" || wishes.activations == "float",
      "activations is neither \"int8\" nor \"float\"");
  return wishes;
}

struct ParserOptions {
  bool tools = false, reasoning = false;
  std::string prompt;
};

ParserOptions read_parser_options(const char* options_json) {
  ParserOptions options;
  if (options_json == nullptr) return options;
  try {
    const mlcb::Json given = mlcb::Json::parse(options_json, "options_json");
    for (const auto& [key, value] : given.members()) {
      if (key == "prompt") {
        options.prompt = value.as_string();
      } else if (key == "tools") {
        options.tools = value.as_bool();
      } else if (key == "reasoning") {
        options.reasoning = value.as_bool();
      } else {
        require(false, "options_json has an unknown key");
      }
    }
  } catch (const Error& error) {  // of JSON: it was no file of the bundle
    throw Error(MLCB_ERROR_ARGUMENT, error.what());
  }
  return options;
}

}  // namespace

mlcb_status mlcb::report(mlcb_status status, const char* message) {
  try {
    last_error = message;
  } catch (...) {
    last_error.clear();  // no memory left for the message
  }
  return status;
}

extern "C" {

uint32_t mlcb_abi_version(void) { return MLCB_ABI_VERSION; }

const char* mlcb_last_error(void) { return last_error.c_str(); }

mlcb_status mlcb_bundle_open(const char* path, const mlcb_bundle_options* options,
                             mlcb_bundle** out) {
  return guarded([&] {
    require(path != nullptr && out != nullptr, "path or out is NULL");
    *out = nullptr;
    const mlcb_bundle_options copy =
        copy_struct(options, sizeof(mlcb_bundle_options), "mlcb_bundle_options");
    auto bundle = std::make_shared<const mlcb::Bundle>(path, copy.verify_full != 0);
    auto grammars = std::make_shared<mlcb::Grammars>(bundle);
    *out = new mlcb_bundle{std::move(bundle), std::move(grammars)};
  });
}

void mlcb_bundle_close(mlcb_bundle* bundle) { delete bundle; }

const char* mlcb_bundle_manifest(const mlcb_bundle* bundle) {
  return bundle != nullptr ? bundle->bundle->manifest_text().c_str() : nullptr;
}

mlcb_status mlcb_tokenize(const mlcb_bundle* bundle, const char* text, size_t text_size,
                          uint32_t flags, int32_t* ids, size_t capacity, size_t* count) {
  return guarded([&] {
    require(bundle != nullptr && count != nullptr, "bundle or count is NULL");
    require(text != nullptr || text_size == 0, "text is NULL");
    require(ids != nullptr || capacity == 0, "ids is NULL");
    require((flags & ~uint32_t{MLCB_TOKENIZE_SPECIAL | MLCB_TOKENIZE_BOS}) == 0, "unknown flags");
    const mlcb::Bundle& opened = *bundle->bundle;
    std::vector<int32_t> found;
    if ((flags & MLCB_TOKENIZE_BOS) != 0 && opened.chat().bos_token_id() >= 0) {
      found.push_back(opened.chat().bos_token_id());
    }
    const std::vector<int32_t> encoded =
        opened.tokenizer().encode(std::string_view(text_size > 0 ? text : "", text_size),
                                  (flags & MLCB_TOKENIZE_SPECIAL) != 0);
    found.insert(found.end(), encoded.begin(), encoded.end());
    *count = found.size();
    if (found.size() > capacity) {
      throw Error(MLCB_ERROR_TOO_SMALL, "the buffer holds " + std::to_string(capacity) + " ids, " +
                                            std::to_string(found.size()) + " are needed");
    }
    if (!found.empty()) std::memcpy(ids, found.data(), found.size() * sizeof(int32_t));
  });
}

mlcb_status mlcb_detokenize(const mlcb_bundle* bundle, const int32_t* ids, size_t count,
                            uint32_t flags, char* text, size_t capacity, size_t* size) {
  return guarded([&] {
    require(bundle != nullptr && size != nullptr, "bundle or size is NULL");
    require(ids != nullptr || count == 0, "ids is NULL");
    require(text != nullptr || capacity == 0, "text is NULL");
    require((flags & ~uint32_t{MLCB_DETOKENIZE_SPECIAL | MLCB_DETOKENIZE_INSIDE}) == 0,
            "unknown flags");
    const mlcb::Bundle& opened = *bundle->bundle;
    std::vector<int32_t> known;
    for (size_t i = 0; i < count; ++i) {
      require(ids[i] >= 0 && ids[i] < opened.vocab_size(), "a token id is out of range");
      if (ids[i] < opened.tokenizer().vocab_size()) known.push_back(ids[i]);  // else: padding
    }
    const bool keep_special = (flags & MLCB_DETOKENIZE_SPECIAL) != 0;
    std::string found;
    if ((flags & MLCB_DETOKENIZE_INSIDE) != 0) {
      for (int32_t id : known) found += opened.tokenizer().token_bytes(id, keep_special);
    } else {
      found = opened.tokenizer().decode(known.data(), known.size(), keep_special);
    }
    copy_out(found, text, capacity, size);
  });
}

mlcb_status mlcb_apply_chat_template(const mlcb_bundle* bundle, const char* conversation_json,
                                     char* text, size_t capacity, size_t* size) {
  return guarded([&] {
    require(bundle != nullptr && size != nullptr, "bundle or size is NULL");
    require(conversation_json != nullptr, "conversation_json is NULL");
    require(text != nullptr || capacity == 0, "text is NULL");
    copy_out(bundle->bundle->chat().render(conversation_json), text, capacity, size);
  });
}

mlcb_status mlcb_grammar_check(const mlcb_bundle* bundle, int32_t kind, const char* text) {
  return guarded([&] {
    require(bundle != nullptr, "bundle is NULL");
    require(text != nullptr || kind == MLCB_GRAMMAR_JSON || kind == MLCB_GRAMMAR_NONE,
            "text is NULL");
    bundle->grammars->get(kind, or_empty(text));
  });
}

mlcb_status mlcb_tool_grammar(const mlcb_bundle* bundle, const char* tools_json,
                              const char* tool_choice_json, int32_t parallel, char* text,
                              size_t capacity, size_t* size) {
  return guarded([&] {
    require(bundle != nullptr && size != nullptr, "bundle or size is NULL");
    require(tools_json != nullptr && tool_choice_json != nullptr,
            "tools_json or tool_choice_json is NULL");
    require(text != nullptr || capacity == 0, "text is NULL");
    const std::string& format = bundle->bundle->chat().tool_format();
    if (format.empty()) {
      throw Error(MLCB_ERROR_UNSUPPORTED,
                  "the model has no convention for tool calls\n"
                  "why: its chat template has no place for tools");
    }
    copy_out(mlcb::tool_grammar(format, tools_json, tool_choice_json, parallel != 0), text,
             capacity, size);
  });
}

mlcb_status mlcb_output_parser_create(const mlcb_bundle* bundle, const char* options_json,
                                      mlcb_output_parser** out) {
  return guarded([&] {
    require(bundle != nullptr && out != nullptr, "bundle or out is NULL");
    *out = nullptr;
    const ParserOptions options = read_parser_options(options_json);
    const mlcb::ChatTemplate& chat = bundle->bundle->chat();
    auto parser =
        mlcb::OutputParser::create(options.tools ? chat.tool_format() : std::string(),
                                   options.reasoning ? chat.reasoning_format() : std::string());
    if (!options.prompt.empty()) parser->read_prompt(options.prompt);
    *out = new mlcb_output_parser{std::move(parser), {}};
  });
}

void mlcb_output_parser_destroy(mlcb_output_parser* parser) { delete parser; }

mlcb_status mlcb_output_parser_push(mlcb_output_parser* parser, const char* text, size_t text_size,
                                    int32_t last, const char** deltas_json) {
  return guarded([&] {
    require(parser != nullptr && deltas_json != nullptr, "parser or deltas_json is NULL");
    require(text != nullptr || text_size == 0, "text is NULL");
    parser->deltas =
        parser->parser->push(std::string_view(text_size > 0 ? text : "", text_size), last != 0);
    *deltas_json = parser->deltas.c_str();
  });
}

mlcb_status mlcb_engine_create(mlcb_bundle* bundle, const mlcb_engine_options* options,
                               mlcb_engine** out) {
  return guarded([&] {
    require(bundle != nullptr && out != nullptr, "bundle or out is NULL");
    *out = nullptr;
    *out = new mlcb_engine(*bundle, read_engine_options(options));
  });
}

void mlcb_engine_destroy(mlcb_engine* engine) { delete engine; }

const char* mlcb_engine_info(const mlcb_engine* engine) {
  return engine != nullptr ? engine->engine.info().c_str() : nullptr;
}

mlcb_status mlcb_request_submit(mlcb_engine* engine, const mlcb_request_params* params,
                                uint64_t* request_id) {
  return guarded([&] {
    require(engine != nullptr && params != nullptr && request_id != nullptr,
            "engine, params or request_id is NULL");
    *request_id = engine->engine.submit(read_request(params));
  });
}

mlcb_status mlcb_request_cancel(mlcb_engine* engine, uint64_t request_id) {
  return guarded([&] {
    require(engine != nullptr, "engine is NULL");
    engine->engine.cancel(request_id);
  });
}

mlcb_status mlcb_engine_step(mlcb_engine* engine, int32_t* busy) {
  return guarded([&] {
    require(engine != nullptr && busy != nullptr, "engine or busy is NULL");
    *busy = engine->engine.step() ? 1 : 0;
  });
}

mlcb_status mlcb_engine_start(mlcb_engine* engine) {
  return guarded([&] {
    require(engine != nullptr, "engine is NULL");
    engine->engine.start();
  });
}

mlcb_status mlcb_engine_stop(mlcb_engine* engine) {
  return guarded([&] {
    require(engine != nullptr, "engine is NULL");
    engine->engine.stop();
  });
}

mlcb_status mlcb_engine_poll(mlcb_engine* engine, mlcb_event* event, int32_t timeout_ms) {
  return guarded([&] {
    require(engine != nullptr && event != nullptr, "engine or event is NULL");
    require(event->struct_size >= sizeof(mlcb_event), "mlcb_event: struct_size is too small");
    require(timeout_ms >= -1, "timeout_ms is below -1");
    mlcb::Event found = engine->engine.poll(timeout_ms);
    std::lock_guard<std::mutex> lock(engine->event_mutex);
    engine->event = std::move(found);
    const mlcb::Event& kept = engine->event;
    engine->top.clear();
    for (const mlcb::TokenLogprob& entry : kept.top) {
      engine->top.push_back({entry.token, entry.logprob});
    }
    event->request_id = kept.request_id;
    event->kind = kept.kind;
    event->choice = kept.choice;
    event->token_id = kept.token_id;
    event->finish_reason = kept.finish_reason;
    event->status = kept.status;
    event->text = kept.text.c_str();
    event->text_size = kept.text.size();
    event->logprob = kept.logprob;
    event->top_logprobs = engine->top.data();
    event->top_logprob_count = engine->top.size();
    event->stop_string = kept.stop_string.empty() ? nullptr : kept.stop_string.c_str();
    event->prompt_tokens = kept.prompt_tokens;
    event->cached_tokens = kept.cached_tokens;
    event->completion_tokens = kept.completion_tokens;
    event->queue_seconds = kept.queue_seconds;
    event->first_token_seconds = kept.first_token_seconds;
    event->total_seconds = kept.total_seconds;
  });
}

mlcb_status mlcb_engine_metrics(mlcb_engine* engine, const char* format, char* text,
                                size_t capacity, size_t* size) {
  return guarded([&] {
    require(engine != nullptr && format != nullptr && size != nullptr,
            "engine, format or size is NULL");
    require(text != nullptr || capacity == 0, "text is NULL");
    copy_out(engine->engine.metrics(format), text, capacity, size);
  });
}

mlcb_status mlcb_engine_limits(mlcb_engine* engine, char* text, size_t capacity, size_t* size) {
  return guarded([&] {
    require(engine != nullptr && size != nullptr, "engine or size is NULL");
    require(text != nullptr || capacity == 0, "text is NULL");
    copy_out(engine->engine.limits(), text, capacity, size);
  });
}

mlcb_status mlcb_engine_clear_cache(mlcb_engine* engine) {
  return guarded([&] {
    require(engine != nullptr, "engine is NULL");
    engine->engine.clear_cache();
  });
}

mlcb_status mlcb_engine_logits(mlcb_engine* engine, const int32_t* token_ids, size_t count,
                               float* logits, size_t capacity) {
  return guarded([&] {
    require(engine != nullptr && token_ids != nullptr && logits != nullptr,
            "engine, token_ids or logits is NULL");
    const size_t vocab = static_cast<size_t>(engine->engine.vocab_size());
    if (count > capacity / vocab) {
      throw Error(MLCB_ERROR_TOO_SMALL, "the buffer holds " + std::to_string(capacity) +
                                            " numbers, " + std::to_string(count) + " rows of " +
                                            std::to_string(vocab) + " are needed");
    }
    engine->engine.logits(token_ids, count, logits);
  });
}

}  // extern "C"
