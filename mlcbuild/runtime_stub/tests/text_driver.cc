// Runs the text parts on commands, one JSON object a line on stdin, one JSON value a line on
// stdout. For tests: text goes in as {"text": ...} or, for any bytes, {"hex": ...}; bytes come out
// as hex.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/error.h"
#include "core/json.h"
#include "driver_loop.h"
#include "text/normalizer.h"
#include "text/pre_tokenizer.h"
#include "text/regex.h"
#include "text/stream.h"
#include "text/tokenizer.h"

namespace mlcb {
namespace {

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

std::vector<std::string> strings(const Json* json) {
  std::vector<std::string> values;
  if (json == nullptr) return values;
  for (const Json& item : json->items()) values.push_back(item.as_string());
  return values;
}

// Of the processor, so that figures of a busy machine can be compared.
double cpu_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

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
    if (op == "encode_to") return encode_to(command);
    if (op == "decode") return decode(command);
    if (op == "token_bytes") return token_bytes(command);
    if (op == "decode_from") return decode_from(command);
    if (op == "find") return std::to_string(tokenizer().find(text_of(command)));
    if (op == "is_special") {
      return tokenizer().is_special(static_cast<int32_t>(command.at("id").as_int())) ? "true"
                                                                                     : "false";
    }
    if (op == "vocab_size") return std::to_string(tokenizer().vocab_size());
    if (op == "json") return dump(Json::parse(text_of(command), "input"));
    if (op == "normalize") return normalize(command);
    if (op == "pre_tokenize") return pre_tokenize(command);
    if (op == "regex") return regex(command);
    if (op == "stream") return stream(command);
    throw Error(MLCB_ERROR_ARGUMENT, "unknown op " + op);
  }

 private:
  const Tokenizer& tokenizer() const {
    if (!tokenizer_) throw Error(MLCB_ERROR_ARGUMENT, "no tokenizer is loaded");
    return *tokenizer_;
  }

  std::string load(const Json& command) {
    const std::string text = text_of(command);
    const double start = cpu_seconds();
    tokenizer_ = Tokenizer::from_file(text, "tokenizer.json");
    return "{\"seconds\":" + std::to_string(cpu_seconds() - start) + "}";
  }

  // Encodes a file of texts, a 32-bit size before each, and writes the ids likewise. Best of the
  // rounds: the caches are warm but for the first one.
  std::string encode_to(const Json& command) {
    const std::vector<std::string> texts = read_records(command.at("texts").as_string());
    std::vector<std::vector<int32_t>> ids(texts.size());
    double best = 1e9;
    for (int64_t round = 0; round < command.at("rounds").as_int(); ++round) {
      const double start = cpu_seconds();
      for (size_t i = 0; i < texts.size(); ++i) {
        ids[i] = tokenizer().encode(texts[i], flag(command, "special"));
      }
      best = std::min(best, cpu_seconds() - start);
    }
    std::ofstream out(command.at("to").as_string(), std::ios::binary);
    for (const auto& list : ids) {
      write_record(list.data(), list.size(), list.size() * sizeof(list[0]), &out);
    }
    return std::to_string(best);
  }

  // The inverse: the texts of the ids in a file.
  std::string decode_from(const Json& command) {
    const auto records = read_records(command.at("ids").as_string(), sizeof(int32_t));
    std::ofstream out(command.at("to").as_string(), std::ios::binary);
    double seconds = 0;
    for (const std::string& record : records) {
      std::vector<int32_t> ids(record.size() / sizeof(int32_t));
      if (!ids.empty()) std::memcpy(ids.data(), record.data(), record.size());
      const double start = cpu_seconds();
      const std::string text = tokenizer().decode(ids.data(), ids.size(), flag(command, "special"));
      seconds += cpu_seconds() - start;
      write_record(text.data(), text.size(), text.size(), &out);
    }
    return std::to_string(seconds);
  }

  static std::vector<std::string> read_records(const std::string& path, size_t unit = 1) {
    const std::string bytes = read_file(path);
    std::vector<std::string> records;
    for (size_t at = 0; at + 4 <= bytes.size();) {
      uint32_t count = 0;
      std::memcpy(&count, bytes.data() + at, 4);
      records.push_back(bytes.substr(at + 4, count * unit));
      at += 4 + count * unit;
    }
    return records;
  }

  static void write_record(const void* data, size_t count, size_t bytes, std::ofstream* out) {
    const uint32_t size = static_cast<uint32_t>(count);
    out->write(reinterpret_cast<const char*>(&size), 4);
    out->write(static_cast<const char*>(data), static_cast<std::streamsize>(bytes));
  }

  std::string encode_summary(const Json& command) {
    const std::string text = text_of(command);
    const double start = cpu_seconds();
    const std::vector<int32_t> ids = tokenizer().encode(text, flag(command, "special"));
    const double seconds = cpu_seconds() - start;
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
    std::vector<int32_t> ids;
    for (const Json& id : command.at("ids").items()) {
      ids.push_back(static_cast<int32_t>(id.as_int()));
    }
    return quoted_hex(tokenizer().decode(ids.data(), ids.size(), flag(command, "special")));
  }

  std::string token_bytes(const Json& command) {
    std::string text;
    for (const Json& id : command.at("ids").items()) {
      text += tokenizer().token_bytes(static_cast<int32_t>(id.as_int()), flag(command, "special"));
    }
    return quoted_hex(text);
  }

  static std::string normalize(const Json& command) {
    const std::string text = text_of(command);
    Normalizer::Scratch scratch;
    const Normalizer normalizer = Normalizer::from_json(command.find("normalizer"));
    return quoted_hex(std::string(normalizer.apply(text, &scratch)));
  }

  static std::string pre_tokenize(const Json& command) {
    const PreTokenizer pre_tokenizer = PreTokenizer::from_json(command.find("pre_tokenizer"));
    const std::string text = text_of(command);
    if (pre_tokenizer.keeps(text)) return text.empty() ? "[]" : "[" + quoted_hex(text) + "]";
    std::vector<RegexChar> chars;
    regex_chars(text, &chars);
    std::vector<Piece> pieces;
    PreTokenizer::Matchers matchers = pre_tokenizer.make_matchers();
    pre_tokenizer.split(&chars, &pieces, &matchers, !flag(command, "behind"));
    std::string out = "[";
    for (const Piece& piece : pieces) {
      std::string bytes;
      append_utf8(chars.data() + piece.begin, piece.end - piece.begin, &bytes);
      out += (out.size() > 1 ? "," : "") + quoted_hex(bytes);
    }
    return out + "]";
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
    regex_chars(text, &chars);
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

  std::unique_ptr<Tokenizer> tokenizer_;
};

}  // namespace
}  // namespace mlcb

int main() {
  mlcb::Driver driver;
  return mlcb::answer_commands(&driver);
}
