#include "web/json_options.h"

#include <charconv>
#include <cmath>
#include <limits>

#include "core/error.h"
#include "core/json.h"

namespace mlcb {
namespace {

// Whether all of a text is a number of its type.
template <typename Integer>
bool read_decimal(const std::string& text, Integer* out) {
  const char* end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, *out);
  return parsed.ec == std::errc() && parsed.ptr == end;
}

template <typename Integer>
void read(const Json& value, Integer* out) {
  const int64_t number = value.as_int();
  if (number < 0 ? number < static_cast<int64_t>(std::numeric_limits<Integer>::min())
                 : static_cast<uint64_t>(number) >
                       static_cast<uint64_t>(std::numeric_limits<Integer>::max())) {
    throw Error(MLCB_ERROR_ARGUMENT, std::to_string(number) + " is out of range");
  }
  *out = static_cast<Integer>(number);
}

void read(const Json& value, float* out) {
  const double number = value.as_double();
  if (std::fabs(number) > std::numeric_limits<float>::max()) {
    throw Error(MLCB_ERROR_ARGUMENT, "the number is out of range");
  }
  *out = static_cast<float>(number);
}

void read(const Json& value, std::vector<int32_t>* out) {
  out->clear();
  for (const Json& item : value.items()) {
    out->emplace_back();
    read(item, &out->back());
  }
}

// A struct's flag: a number, as in C, or true and false.
void read_flag(const Json& value, int32_t* out) {
  if (value.is_bool()) {
    *out = value.as_bool() ? 1 : 0;
  } else {
    read(value, out);
  }
}

// A number; one that JSON's doubles do not hold exactly comes as a text.
void read_seed(const Json& value, uint64_t* out) {
  if (!value.is_string()) return read(value, out);
  if (!read_decimal(value.as_string(), out)) {
    throw Error(MLCB_ERROR_ARGUMENT, json_quote(value.as_string()) + " is no seed");
  }
}

void read_text(const Json& value, std::string* storage, const char** out) {
  if (value.is_null()) return;
  *storage = value.as_string();
  *out = storage->c_str();
}

mlcb_logit_bias read_bias(int32_t token, const Json& bias) {
  mlcb_logit_bias entry{token, -INFINITY};
  if (!bias.is_null()) read(bias, &entry.bias);
  return entry;
}

void read_biases(const Json& value, std::vector<mlcb_logit_bias>* out) {
  out->clear();
  if (value.is_object()) {
    for (const auto& [key, bias] : value.members()) {
      int32_t token = 0;
      if (!read_decimal(key, &token)) {
        throw Error(MLCB_ERROR_ARGUMENT, json_quote(key) + " is no token id");
      }
      out->push_back(read_bias(token, bias));
    }
    return;
  }
  for (const Json& pair : value.items()) {
    if (!pair.is_array() || pair.size() != 2) {
      throw Error(MLCB_ERROR_ARGUMENT, "an entry is no pair [id, bias]");
    }
    int32_t token = 0;
    read(pair.items()[0], &token);
    out->push_back(read_bias(token, pair.items()[1]));
  }
}

// Calls set(key, value), which tells whether it knows the key, for every member of the object.
template <typename Set>
void read_members(const char* text, const char* what, Set set) {
  try {
    const Json given = Json::parse(text, what);
    for (const auto& [key, value] : given.members()) {
      bool known = false;
      try {
        known = set(key, value);
      } catch (const Error& error) {
        const std::string why = error.what();
        const size_t begin = why.compare(0, 6, "JSON: ") == 0 ? 6 : 0;  // the place is told here
        throw Error(MLCB_ERROR_ARGUMENT, std::string(what) + ": " + key + ": " + why.substr(begin));
      }
      if (!known) {
        throw Error(MLCB_ERROR_ARGUMENT, std::string(what) + ": unknown key " + json_quote(key));
      }
    }
  } catch (const Error& error) {  // of JSON: it was no file of the bundle
    throw Error(MLCB_ERROR_ARGUMENT, error.what());
  }
}

}  // namespace

EngineOptionsJson::EngineOptionsJson(const char* text) {
  options_.struct_size = sizeof(options_);
  if (text == nullptr) return;
  read_members(text, "engine options", [&](const std::string& key, const Json& value) {
    if (key == "threads") {
      read(value, &options_.threads);
    } else if (key == "max_batch_size") {
      read(value, &options_.max_batch_size);
    } else if (key == "kv_tokens") {
      read(value, &options_.kv_tokens);
    } else if (key == "kv_bytes") {
      read(value, &options_.kv_bytes);
    } else if (key == "mode") {
      read_text(value, &mode_, &options_.mode);
    } else if (key == "max_waiting") {
      read(value, &options_.max_waiting);
    } else if (key == "no_prefix_cache") {
      read_flag(value, &options_.no_prefix_cache);
    } else if (key == "speculation") {
      read_text(value, &speculation_, &options_.speculation);
    } else if (key == "speculation_tokens") {
      read(value, &options_.speculation_tokens);
    } else if (key == "profile") {
      read_flag(value, &options_.profile);
    } else if (key == "activations") {
      read_text(value, &activations_, &options_.activations);
    } else if (key == "variant") {
      read_text(value, &variant_, &options_.variant);
    } else {
      return false;
    }
    return true;
  });
}

RequestParamsJson::RequestParamsJson(const char* text) {
  params_.struct_size = sizeof(params_);
  read_members(text, "request", [&](const std::string& key, const Json& value) {
    if (key == "token_ids") {
      read(value, &token_ids_);
    } else if (key == "n") {
      read(value, &params_.n);
    } else if (key == "max_tokens") {
      read(value, &params_.max_tokens);
    } else if (key == "temperature") {
      read(value, &params_.temperature);
    } else if (key == "top_p") {
      read(value, &params_.top_p);
    } else if (key == "top_k") {
      read(value, &params_.top_k);
    } else if (key == "min_p") {
      read(value, &params_.min_p);
    } else if (key == "repetition_penalty") {
      read(value, &params_.repetition_penalty);
    } else if (key == "presence_penalty") {
      read(value, &params_.presence_penalty);
    } else if (key == "frequency_penalty") {
      read(value, &params_.frequency_penalty);
    } else if (key == "seed") {
      read_seed(value, &params_.seed);
    } else if (key == "logit_bias") {
      read_biases(value, &logit_bias_);
    } else if (key == "logprobs") {
      read_flag(value, &params_.logprobs);
    } else if (key == "top_logprobs") {
      read(value, &params_.top_logprobs);
    } else if (key == "ignore_eos") {
      read_flag(value, &params_.ignore_eos);
    } else if (key == "stop") {
      for (const Json& item : value.items()) stop_.push_back(item.as_string());
    } else if (key == "stop_token_ids") {
      read(value, &stop_token_ids_);
    } else if (key == "timeout_ms") {
      read(value, &params_.timeout_ms);
    } else if (key == "grammar_kind") {
      read(value, &params_.grammar_kind);
    } else if (key == "grammar") {
      read_text(value, &grammar_, &params_.grammar);
    } else {
      return false;
    }
    return true;
  });
  for (const std::string& text_of : stop_) stop_pointers_.push_back(text_of.c_str());
  params_.token_ids = token_ids_.data();
  params_.token_count = token_ids_.size();
  params_.logit_bias = logit_bias_.data();
  params_.logit_bias_count = logit_bias_.size();
  params_.stop = stop_pointers_.data();
  params_.stop_count = stop_pointers_.size();
  params_.stop_token_ids = stop_token_ids_.data();
  params_.stop_token_count = stop_token_ids_.size();
}

}  // namespace mlcb
