#include "text/decoder.h"

#include "core/error.h"
#include "core/utf8.h"
#include "text/normalizer.h"
#include "text/vocab.h"

namespace mlcb {
namespace {

constexpr char kReplacementChar[] = "\xEF\xBF\xBD";

[[noreturn]] void unsupported_decoder(const std::string& what) {
  throw Error(MLCB_ERROR_UNSUPPORTED, "tokenizer: " + what + " is not supported");
}

// The text of a JSON key that must be one character.
std::string one_char(const Json& json, const char* key, const std::string& type) {
  const std::string& text = json.at(key).as_string();
  const Utf8Char c =
      text.empty() ? Utf8Char() : utf8_decode(text.data(), text.data() + text.size());
  if (c.size == 0 || c.size != text.size()) {
    unsupported_decoder("decoder '" + type + "' with a " + key + " that is not one character");
  }
  return text;
}

size_t count_of(const Json& json, const char* key) {
  const int64_t value = json.at(key).as_int();
  if (value < 0 || value > INT32_MAX) {
    throw Error(MLCB_ERROR_BUNDLE,
                std::string("tokenizer: decoder Strip: ") + key + " is out of range");
  }
  return static_cast<size_t>(value);
}

// The byte that a token like <0x0A> stands for, or -1.
int byte_of(std::string_view token) {
  if (token.size() != 6 || token.substr(0, 3) != "<0x" || token[5] != '>') return -1;
  int value = 0;
  for (const char c : token.substr(3, 2)) {
    int digit = 0;
    if (c >= '0' && c <= '9') {
      digit = c - '0';
    } else if ((c | 32) >= 'a' && (c | 32) <= 'f') {
      digit = (c | 32) - 'a' + 10;
    } else {
      return -1;
    }
    value = value * 16 + digit;
  }
  return value;
}

bool is_utf8(std::string_view text) {
  const char* end = text.data() + text.size();
  for (const char* p = text.data(); p != end;) {
    const Utf8Char c = utf8_decode(p, end);
    if (c.size == 0) return false;
    p += c.size;
  }
  return true;
}

// Every maximal part that is not UTF-8 becomes U+FFFD.
std::string lossy(std::string_view text) {
  std::string out;
  const char* end = text.data() + text.size();
  for (const char* p = text.data(); p != end;) {
    const Utf8Char c = utf8_decode(p, end);
    if (c.size != 0) {
      out.append(p, c.size);
      p += c.size;
    } else {
      out += kReplacementChar;
      p += c.bad_size;
    }
  }
  return out;
}

std::string join(const std::vector<std::string>& tokens) {
  size_t size = 0;
  for (const std::string& token : tokens) size += token.size();
  std::string text;
  text.reserve(size);
  for (const std::string& token : tokens) text += token;
  return text;
}

// The bytes that a byte-level spelling stands for; another text stays as it is.
std::string spelled_bytes(std::string_view token) {
  std::string bytes;
  return append_spelled_bytes(token, &bytes) ? bytes : std::string(token);
}

}  // namespace

Decoder Decoder::from_json(const Json* json) {
  if (json == nullptr || json->is_null()) unsupported_decoder("a tokenizer without a decoder");
  Decoder result;
  result.add(*json);
  return result;
}

void Decoder::add(const Json& json) {
  const std::string& type = json.at("type").as_string();
  Step step;
  if (type == "Sequence") {
    for (const Json& item : json.at("decoders").items()) add(item);
    return;
  }
  if (type == "ByteLevel") {
    step.kind = Kind::kByteLevel;
  } else if (type == "ByteFallback") {
    step.kind = Kind::kByteFallback;
  } else if (type == "Fuse") {
    step.kind = Kind::kFuse;
  } else if (type == "Strip") {
    step.kind = Kind::kStrip;
    step.pattern = one_char(json, "content", type);
    step.start = count_of(json, "start");
    step.stop = count_of(json, "stop");
  } else if (type == "Replace") {
    const Json& pattern = json.at("pattern");
    step.content = json.at("content").as_string();
    if (const Json* text = pattern.find("String")) {
      step.kind = Kind::kReplaceText;
      step.pattern = text->as_string();
      if (step.pattern.empty()) unsupported_decoder("decoder Replace of an empty text");
    } else if (const Json* regex = pattern.find("Regex")) {
      step.kind = Kind::kReplaceRegex;
      step.regex = Regex::compile(regex->as_string());
    } else {
      unsupported_decoder("decoder Replace with a pattern that is neither Regex nor String");
    }
  } else if (type == "Metaspace") {
    step.kind = Kind::kMetaspace;
    step.pattern = one_char(json, "replacement", type);
    const Json* scheme = json.find("prepend_scheme");
    step.at_begin = scheme == nullptr || scheme->as_string() != "never";
  } else {
    unsupported_decoder("decoder '" + type + "'");
  }
  steps_.push_back(std::move(step));
}

bool Decoder::is_byte_level() const {
  return steps_.size() == 1 && steps_[0].kind == Kind::kByteLevel;
}

void Decoder::replace(const Step& step, std::string* token) {
  std::string out;
  std::vector<RegexChar> chars;
  const bool changed = step.kind == Kind::kReplaceRegex
                           ? replace_matches(step.regex, *token, step.content, &chars, &out)
                           : replace_text(*token, step.pattern, step.content, &out);
  if (changed) token->swap(out);
}

void Decoder::strip(const Step& step, std::string* token) {
  const size_t unit = step.pattern.size();
  size_t begin = 0, end = token->size();
  for (size_t i = 0; i < step.start && token->compare(begin, unit, step.pattern) == 0; ++i) {
    begin += unit;
  }
  for (size_t i = 0; i < step.stop && end - begin >= unit; ++i) {
    if (token->compare(end - unit, unit, step.pattern) != 0) break;
    end -= unit;
  }
  *token = token->substr(begin, end - begin);
}

// Runs of tokens that stand for bytes become text if they are UTF-8, else one U+FFFD for each byte.
void Decoder::fall_back(std::vector<std::string>* tokens) {
  std::vector<std::string> out;
  std::string run;
  auto flush = [&] {
    if (run.empty()) return;
    if (is_utf8(run)) {
      out.push_back(run);
    } else {
      for (size_t i = 0; i < run.size(); ++i) out.push_back(kReplacementChar);
    }
    run.clear();
  };
  for (std::string& token : *tokens) {
    const int byte = byte_of(token);
    if (byte >= 0) {
      run.push_back(static_cast<char>(byte));
    } else {
      flush();
      out.push_back(std::move(token));
    }
  }
  flush();
  tokens->swap(out);
}

std::string Decoder::decode(std::vector<std::string> tokens) const {
  for (size_t i = 0; i < steps_.size(); ++i) {
    const Step& step = steps_[i];
    switch (step.kind) {
      case Kind::kByteLevel: {
        for (std::string& token : tokens) token = spelled_bytes(token);
        std::string bytes = join(tokens);
        // At the end bytes stay what they are: who shows them decides what becomes of bad ones.
        tokens.assign(1, i + 1 == steps_.size() ? bytes : lossy(bytes));
        break;
      }
      case Kind::kByteFallback:
        fall_back(&tokens);
        break;
      case Kind::kFuse:
        tokens.assign(1, join(tokens));
        break;
      case Kind::kStrip:
        for (std::string& token : tokens) strip(step, &token);
        break;
      case Kind::kReplaceText:
      case Kind::kReplaceRegex:
        for (std::string& token : tokens) replace(step, &token);
        break;
      case Kind::kMetaspace:
        for (size_t k = 0; k < tokens.size(); ++k) {
          std::string out;
          const bool dropped = k == 0 && step.at_begin;
          if (replace_text(tokens[k], step.pattern, dropped ? "" : " ", &out)) tokens[k].swap(out);
        }
        break;
    }
  }
  return join(tokens);
}

std::string Decoder::decode_inside(std::string token) const {
  bool fused = false;  // the steps that follow see the whole text
  for (const Step& step : steps_) {
    switch (step.kind) {
      case Kind::kByteLevel:
        token = spelled_bytes(token);
        break;
      case Kind::kByteFallback: {
        const int byte = byte_of(token);
        if (byte >= 0) return std::string(1, static_cast<char>(byte));
        break;
      }
      case Kind::kFuse:
        fused = true;
        break;
      case Kind::kStrip:
        if (!fused) strip(step, &token);
        break;
      case Kind::kReplaceText:
      case Kind::kReplaceRegex:
        replace(step, &token);
        break;
      case Kind::kMetaspace: {
        std::string out;
        if (replace_text(token, step.pattern, " ", &out)) token.swap(out);
        break;
      }
    }
  }
  return token;
}

}  // namespace mlcb
