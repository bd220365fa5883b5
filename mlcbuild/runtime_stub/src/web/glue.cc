// What a WebAssembly module exports besides mlcb.h, for hosts that pass strings and numbers.
#include <cstdint>
#include <string>

#include "abi/guard.h"
#include "core/decimal.h"
#include "core/json.h"
#include "core/os_web.h"
#include "core/sha256.h"
#include "mlcb.h"
#include "web/json_options.h"

namespace {

using mlcb::decimal;
using mlcb::guarded;
using mlcb::json_quote;
using mlcb::require;

const char* kind_name(int32_t kind) {
  switch (kind) {
    case MLCB_EVENT_TOKEN:
      return "token";
    case MLCB_EVENT_DONE:
      return "done";
    default:
      return "error";
  }
}

std::string finish_reason(int32_t reason) {
  switch (reason) {
    case MLCB_FINISH_STOP:
      return "\"stop\"";
    case MLCB_FINISH_LENGTH:
      return "\"length\"";
    case MLCB_FINISH_CANCEL:
      return "\"cancel\"";
    case MLCB_FINISH_DEADLINE:
      return "\"deadline\"";
    default:
      return "null";
  }
}

std::string event_json(const mlcb_event& event) {
  auto number = [](const char* key, int64_t value) {
    return std::string(",\"") + key + "\":" + std::to_string(value);
  };
  auto fraction = [](const char* key, double value) {
    return std::string(",\"") + key + "\":" + decimal(value);
  };
  std::string json = std::string("{\"kind\":\"") + kind_name(event.kind) + "\"";
  json += number("request_id", static_cast<int64_t>(event.request_id));
  json += number("choice", event.choice);
  json += number("token_id", event.token_id);
  json += ",\"finish_reason\":" + finish_reason(event.finish_reason);
  json += number("status", event.status);
  json += ",\"text\":" + json_quote({event.text, event.text_size});
  json += fraction("logprob", event.logprob) + ",\"top_logprobs\":[";
  for (size_t i = 0; i < event.top_logprob_count; ++i) {
    json += std::string(i > 0 ? "," : "") +
            "{\"token_id\":" + std::to_string(event.top_logprobs[i].token_id) +
            fraction("logprob", event.top_logprobs[i].logprob) + "}";
  }
  json += "],\"stop_string\":";
  json += event.stop_string != nullptr ? json_quote(event.stop_string) : "null";
  json += number("prompt_tokens", event.prompt_tokens);
  json += number("cached_tokens", event.cached_tokens);
  json += number("completion_tokens", event.completion_tokens);
  json += fraction("queue_seconds", event.queue_seconds);
  json += fraction("first_token_seconds", event.first_token_seconds);
  return json + fraction("total_seconds", event.total_seconds) + "}";
}

}  // namespace

extern "C" {

// A file in the runtime's memory, created or replaced: its bytes, for the host to fill in. NULL if
// there is no memory for it.
MLCB_API uint8_t* mlcb_web_file(const char* path, uint32_t size) {
  uint8_t* data = nullptr;
  guarded([&] {
    require(path != nullptr, "path is NULL");
    data = mlcb::create_file(path, size);
  });
  return data;
}

// _NOT_FOUND if there is no such file. A bundle that is open keeps the bytes that it needs.
MLCB_API int32_t mlcb_web_file_remove(const char* path) {
  return guarded([&] {
    require(path != nullptr, "path is NULL");
    if (!mlcb::remove_file(path)) throw mlcb::Error(MLCB_ERROR_NOT_FOUND, "no such file");
  });
}

MLCB_API void mlcb_web_sha256(const uint8_t* data, uint32_t size, uint8_t* out) {
  mlcb::Sha256 hash;
  hash.update(data, size);
  hash.finish(out);
}

// The same in pieces: NULL if there is no memory; final also frees it.
MLCB_API void* mlcb_web_sha256_init() { return new (std::nothrow) mlcb::Sha256; }
MLCB_API void mlcb_web_sha256_update(void* hash, const uint8_t* data, uint32_t size) {
  static_cast<mlcb::Sha256*>(hash)->update(data, size);
}
MLCB_API void mlcb_web_sha256_final(void* hash, uint8_t* out) {
  mlcb::Sha256* whole = static_cast<mlcb::Sha256*>(hash);
  whole->finish(out);
  delete whole;
}

// options_json: an object with fields of mlcb_engine_options, without draft; NULL: defaults.
MLCB_API mlcb_status mlcb_web_engine_create(mlcb_bundle* bundle, const char* options_json,
                                            mlcb_engine** out) {
  mlcb_status status = MLCB_OK;
  const mlcb_status outer = guarded([&] {
    require(out != nullptr, "out is NULL");
    *out = nullptr;
    const mlcb::EngineOptionsJson options(options_json);
    status = mlcb_engine_create(bundle, options.get(), out);
  });
  return outer != MLCB_OK ? outer : status;
}

// request_json: an object with fields of mlcb_request_params; see json_options.h.
MLCB_API mlcb_status mlcb_web_submit(mlcb_engine* engine, const char* request_json, uint64_t* id) {
  mlcb_status status = MLCB_OK;
  const mlcb_status outer = guarded([&] {
    require(request_json != nullptr, "request_json is NULL");
    const mlcb::RequestParamsJson params(request_json);
    status = mlcb_request_submit(engine, params.get(), id);
  });
  return outer != MLCB_OK ? outer : status;
}

// The next event as JSON, valid until the next call; NULL if there is none. A failure of the call
// itself is an event of kind "error" of request 0, which no request has.
MLCB_API const char* mlcb_web_poll(mlcb_engine* engine) {
  static std::string json;
  mlcb_event event{};
  event.struct_size = sizeof(event);
  mlcb_status status = mlcb_engine_poll(engine, &event, 0);
  if (status == MLCB_OK) {
    if (event.kind == MLCB_EVENT_NONE) return nullptr;
    status = guarded([&] { json = event_json(event); });
  }
  if (status != MLCB_OK) {
    event = {};
    event.kind = MLCB_EVENT_ERROR;
    event.status = status;
    event.text = mlcb_last_error();
    event.text_size = std::char_traits<char>::length(event.text);
    json = event_json(event);
  }
  return json.c_str();
}

}  // extern "C"
