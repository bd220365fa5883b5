// Runs the text parts on commands, one JSON object a line on stdin, one JSON value a line on
// stdout. For tests: text goes in as {"text": ...} or, for any bytes, {"hex": ...}; bytes come out
// as hex.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/error.h"
#include "core/json.h"
#include "core/utf8.h"
#include "text/chat_template.h"
#include "text/regex.h"
#include "text/sampler.h"
#include "text/stream.h"
#include "text/tokenizer.h"
#include "text/unicode.h"

namespace mlcb {
namespace {

std::string from_hex(const std::string& hex) {
  std::string bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes.push_back(static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

std::string to_hex(const std::string& bytes) {
  static const char kDigits[] = "0123456789abcdef";
  std::string hex;
  for (const char c : bytes) {
    hex.push_back(kDigits[static_cast<uint8_t>(c) >> 4]);
    hex.push_back(kDigits[static_cast<uint8_t>(c) & 15]);
  }
  return hex;
}

std::string quoted_hex(const std::string& bytes) { return "\"" + to_hex(bytes) + "\""; }

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw Error(MLCB_ERROR_IO, "cannot read " + path);
  return std::string(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
}

std::string text_of(const Json& command) {
  if (const Json* hex = command.find("hex")) return from_hex(hex->as_string());
  if (const Json* path = command.find("file")) return read_file(path->as_string());
  std::string text = command.at("text").as_string();
  const Json* repeat = command.find("repeat");
  if (repeat == nullptr) return text;
  std::string repeated;
  for (int64_t i = 0; i < repeat->as_int(); ++i) repeated += text;
  return repeated;
}

template <typename Values>
std::string list(const Values& values) {
  std::string out = "[";
  for (const auto& value : values) out += (out.size() > 1 ? "," : "") + std::to_string(value);
  return out + "]";
}

bool flag(const Json& command, const char* key) {
  const Json* value = command.find(key);
  return value != nullptr && value->as_bool();
}

double number(const Json& command, const char* key, double fallback) {
  const Json* value = command.find(key);
  return value == nullptr ? fallback : value->as_double();
}

std::vector<std::string> strings(const Json* json) {
  std::vector<std::string> values;
  if (json == nullptr) return values;
  for (const Json& item : json->items()) values.push_back(item.as_string());
  return values;
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

class Driver {
 public:
  std::string run(const Json& command) {
    const std::string& op = command.at("op").as_string();
    if (op == "load") return load(command);
    if (op == "encode") {
      return list(tokenizer().encode(text_of(command), flag(command, "special")));
    }
    if (op == "encode_summary") return encode_summary(command);
    if (op == "encode_threads") return encode_threads(command);
    if (op == "decode") return decode(command);
    if (op == "find") return std::to_string(tokenizer().find(text_of(command)));
    if (op == "is_special") {
      return tokenizer().is_special(static_cast<int32_t>(command.at("id").as_int())) ? "true"
                                                                                     : "false";
    }
    if (op == "vocab_size") return std::to_string(tokenizer().vocab_size());
    if (op == "json") return dump(Json::parse(text_of(command), "input"));
    if (op == "nfc") {
      const std::string text = text_of(command);
      std::string out;
      return quoted_hex(unicode_nfc(text, &out) ? out : text);
    }
    if (op == "regex") return regex(command);
    if (op == "stream") return stream(command);
    if (op == "sample") return sample(command);
    if (op == "chat") return chat(command);
    throw Error(MLCB_ERROR_ARGUMENT, "unknown op " + op);
  }

 private:
  const Tokenizer& tokenizer() const {
    if (!tokenizer_) throw Error(MLCB_ERROR_ARGUMENT, "no tokenizer is loaded");
    return *tokenizer_;
  }

  std::string load(const Json& command) {
    const std::string text = text_of(command);
    const auto start = std::chrono::steady_clock::now();
    const Json json = Json::parse(text, "tokenizer.json");
    const double parse = seconds_since(start);
    tokenizer_ = Tokenizer::from_json(json);
    return "{\"parse\":" + std::to_string(parse) +
           ",\"total\":" + std::to_string(seconds_since(start)) + "}";
  }

  std::string encode_summary(const Json& command) {
    const std::string text = text_of(command);
    const auto start = std::chrono::steady_clock::now();
    const std::vector<int32_t> ids = tokenizer().encode(text, flag(command, "special"));
    const double seconds = seconds_since(start);
    std::string decoded;
    for (const int32_t id : ids) decoded += tokenizer().token_bytes(id, true);
    return "{\"count\":" + std::to_string(ids.size()) + ",\"seconds\":" + std::to_string(seconds) +
           ",\"round_trip\":" + (decoded == text ? "true" : "false") + "}";
  }

  // Encodes each text on a thread of its own, many times; true if the ids never differ.
  std::string encode_threads(const Json& command) {
    const std::vector<std::string> texts = strings(&command.at("texts"));
    std::vector<std::vector<int32_t>> expected;
    for (const std::string& text : texts) expected.push_back(tokenizer().encode(text, true));
    std::vector<char> same(texts.size(), 1);
    std::vector<std::thread> threads;
    for (size_t i = 0; i < texts.size(); ++i) {
      threads.emplace_back([&, i] {
        for (int round = 0; round < 200; ++round) {
          if (tokenizer().encode(texts[i], true) != expected[i]) same[i] = 0;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    return std::count(same.begin(), same.end(), 1) == static_cast<ptrdiff_t>(same.size()) ? "true"
                                                                                          : "false";
  }

  std::string decode(const Json& command) {
    std::string text;
    for (const Json& id : command.at("ids").items()) {
      text += tokenizer().token_bytes(static_cast<int32_t>(id.as_int()), flag(command, "special"));
    }
    return quoted_hex(text);
  }

  static std::string dump(const Json& json) {
    switch (json.kind()) {
      case Json::Kind::kNull:
        return "null";
      case Json::Kind::kBool:
        return json.as_bool() ? "true" : "false";
      case Json::Kind::kNumber: {
        char buffer[40];
        std::snprintf(buffer, sizeof(buffer), "%.17g", json.as_double());
        return buffer;
      }
      case Json::Kind::kString:
        return json_quote(json.as_string());
      case Json::Kind::kArray: {
        std::string out = "[";
        for (const Json& item : json.items()) out += (out.size() > 1 ? "," : "") + dump(item);
        return out + "]";
      }
      case Json::Kind::kObject: {
        std::string out = "{";
        for (const auto& [key, value] : json.members()) {
          out += (out.size() > 1 ? "," : "") + json_quote(key) + ":" + dump(value);
        }
        return out + "}";
      }
    }
    return "null";
  }

  // Matches of a pattern, as [begin, end, begin, end, ...] in characters.
  static std::string regex(const Json& command) {
    const Regex pattern = Regex::compile(command.at("pattern").as_string());
    const std::string text = text_of(command);
    std::vector<RegexChar> chars;
    const char* end = text.data() + text.size();
    for (const char* p = text.data(); p != end;) {
      const Utf8Char c = utf8_decode(p, end);
      if (c.size == 0) throw Error(MLCB_ERROR_ARGUMENT, "the text is not UTF-8");
      chars.push_back(make_regex_char(c.code, unicode_category(c.code)));
      p += c.size;
    }
    RegexMatcher matcher(pattern);
    matcher.reset(chars.data(), chars.size());
    std::vector<size_t> spans;
    for (size_t from = 0, to = 0; matcher.next(&from, &to);) {
      spans.push_back(from);
      spans.push_back(to);
    }
    return list(spans);
  }

  static std::string stream(const Json& command) {
    TextStream stream(strings(command.find("stop")));
    std::string out = "[";
    for (const std::string& chunk : strings(&command.at("chunks"))) {
      out += quoted_hex(stream.push(from_hex(chunk))) + ",";
    }
    out += quoted_hex(stream.finish()) + ",";
    return out + (stream.stopped() ? "true]" : "false]");
  }

  static std::string sample(const Json& command) {
    std::vector<float> logits;
    for (const Json& item : command.at("logits").items()) {
      logits.push_back(item.is_string() ? std::stof(item.as_string())
                                        : static_cast<float>(item.as_double()));
    }
    SamplingParams params;
    params.temperature = static_cast<float>(number(command, "temperature", 0));
    params.top_p = static_cast<float>(number(command, "top_p", 1));
    params.top_k = static_cast<int32_t>(number(command, "top_k", 0));
    params.seed = static_cast<uint64_t>(number(command, "seed", 0));
    Sampler sampler(params);
    const size_t valid =
        static_cast<size_t>(number(command, "valid", static_cast<double>(logits.size())));
    std::vector<int32_t> ids;
    for (int64_t i = 0; i < static_cast<int64_t>(number(command, "draws", 1)); ++i) {
      ids.push_back(sampler.sample(logits.data(), logits.size(), valid));
    }
    return list(ids);
  }

  static std::string chat(const Json& command) {
    const ChatTemplate chat = ChatTemplate::from_json(command.at("chat"));
    return json_quote(chat.render(ChatTemplate::parse_messages(command.at("messages").as_string()),
                                  flag(command, "generate")));
  }

  std::unique_ptr<Tokenizer> tokenizer_;
};

}  // namespace
}  // namespace mlcb

int main() {
  std::ios::sync_with_stdio(false);
  mlcb::Driver driver;
  std::string line;
  while (std::getline(std::cin, line)) {
    std::string answer;
    try {
      answer = driver.run(mlcb::Json::parse(line, "command"));
    } catch (const mlcb::Error& error) {
      answer = "{\"error\":" + mlcb::json_quote(error.what()) +
               ",\"status\":" + std::to_string(error.status()) + "}";
    }
    std::cout << answer << std::endl;
  }
  return 0;
}
