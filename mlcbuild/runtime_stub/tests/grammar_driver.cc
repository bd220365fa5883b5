// Runs grammars on commands, one JSON object a line on stdin, one JSON value a line on stdout. For
// tests and benches: the vocabulary comes from a file with a line for each token, its bytes in hex
// ("-" for none), then " special" for special ones.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "core/error.h"
#include "core/json.h"
#include "driver_loop.h"
#include "grammar/grammar.h"
#include "text/tokenizer.h"

namespace mlcb {
namespace {

class FileTokenizer : public Tokenizer {
 public:
  explicit FileTokenizer(const std::string& path) {
    std::ifstream file(path);
    if (!file) throw Error(MLCB_ERROR_IO, "cannot read " + path);
    for (std::string line; std::getline(file, line);) {
      special_.push_back(line.find(' ') != std::string::npos);
      const std::string hex = line.substr(0, line.find(' '));
      bytes_.push_back(hex == "-" ? "" : from_hex(hex));
    }
  }

  std::vector<int32_t> encode(std::string_view, bool) const override { return {}; }
  std::string token_bytes(int32_t id, bool keep_special) const override {
    return is_special(id) && !keep_special ? "" : bytes_[static_cast<size_t>(id)];
  }
  std::string decode(const int32_t*, size_t, bool) const override { return ""; }
  bool is_special(int32_t id) const override { return special_[static_cast<size_t>(id)]; }
  int32_t find(std::string_view) const override { return -1; }
  int32_t vocab_size() const override { return static_cast<int32_t>(bytes_.size()); }

 private:
  std::vector<std::string> bytes_;
  std::vector<char> special_;
};

using Clock = std::chrono::steady_clock;

double microseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

template <typename Values>
std::string list(const Values& values) {
  std::string out = "[";
  for (const auto& value : values) out += (out.size() > 1 ? "," : "") + std::to_string(value);
  return out + "]";
}

mlcb_grammar_kind kind_of(const std::string& name) {
  static const std::map<std::string, mlcb_grammar_kind> kKinds = {
      {"json", MLCB_GRAMMAR_JSON},
      {"json_schema", MLCB_GRAMMAR_JSON_SCHEMA},
      {"regex", MLCB_GRAMMAR_REGEX},
      {"ebnf", MLCB_GRAMMAR_EBNF},
      {"structure", MLCB_GRAMMAR_STRUCTURE}};
  return kKinds.at(name);
}

bool is_set(const uint32_t* words, int32_t id) { return words[id >> 5] >> (id & 31) & 1; }

class Driver {
 public:
  std::string run(const Json& command) {
    const std::string& op = command.at("op").as_string();
    if (op == "load") return load(command);
    if (op == "compile") return compile(command);
    if (op == "match") return match(command);
    if (op == "allowed") return allowed(command);
    if (op == "accept") return accept(command);
    if (op == "forced") return forced(command);
    if (op == "brute_force") return brute_force(command);
    if (op == "generate") return generate(command);
    if (op == "time") return time(command);
    if (op == "threads") return threads(command);
    if (op == "cache") return cache(command);
    throw Error(MLCB_ERROR_ARGUMENT, "unknown op " + op);
  }

 private:
  std::string load(const Json& command) {
    const FileTokenizer tokenizer(command.at("file").as_string());
    auto ids = [&](const char* key) {
      std::vector<int32_t> found;
      const Json* given = command.find(key);
      if (given == nullptr) return found;
      for (const Json& id : given->items()) found.push_back(static_cast<int32_t>(id.as_int()));
      return found;
    };
    const Json* valid = command.find("valid");
    const auto start = Clock::now();
    vocabulary_ = std::make_shared<GrammarVocabulary>(
        tokenizer,
        valid == nullptr ? tokenizer.vocab_size() : static_cast<int32_t>(valid->as_int()),
        ids("stop"), ids("kept"));
    return std::to_string(microseconds_since(start));
  }

  std::string compile(const Json& command) {
    const auto start = Clock::now();
    grammar_ = Grammar::compile(kind_of(command.at("kind").as_string()),
                                command.at("text").as_string(), vocabulary_);
    return std::to_string(microseconds_since(start));
  }

  GrammarMatcher matcher_after(const Json& command) const {
    GrammarMatcher matcher(grammar_);
    const Json* prefix = command.find("prefix");
    if (prefix != nullptr && !matcher.accept_bytes(from_hex(prefix->as_string()))) {
      throw Error(MLCB_ERROR_ARGUMENT, "the prefix does not match");
    }
    return matcher;
  }

  // For each text: 2 if it is whole, 1 if it could go on, 0 if not.
  std::string match(const Json& command) const {
    std::vector<int> answers;
    for (const Json& text : command.at("texts").items()) {
      GrammarMatcher matcher(grammar_);
      const bool accepted = matcher.accept_bytes(from_hex(text.as_string()));
      answers.push_back(!accepted ? 0 : matcher.can_end() ? 2 : 1);
    }
    return list(answers);
  }

  std::string allowed(const Json& command) const {
    GrammarMatcher matcher = matcher_after(command);
    const uint32_t* words = matcher.allowed();
    std::vector<int32_t> ids;
    for (int32_t id = 0; id < vocabulary_->valid_size(); ++id) {
      if (is_set(words, id)) ids.push_back(id);
    }
    return list(ids);
  }

  // [accepted?, can_end, must_end] for each token; it stops at the first that is refused.
  std::string accept(const Json& command) const {
    GrammarMatcher matcher = matcher_after(command);
    std::string out = "[";
    for (const Json& id : command.at("ids").items()) {
      const bool accepted = matcher.accept(static_cast<int32_t>(id.as_int()));
      out += (out.size() > 1 ? ",[" : "[") + std::to_string(accepted) + "," +
             std::to_string(matcher.can_end()) + "," + std::to_string(matcher.must_end()) + "]";
      if (!accepted) break;
    }
    return out + "]";
  }

  std::string forced(const Json& command) const {
    return quoted_hex(matcher_after(command).forced_bytes());
  }

  // Tokens whose bit in the mask differs from what accept() says, over all of the vocabulary.
  std::string brute_force(const Json& command) const {
    GrammarMatcher matcher = matcher_after(command);
    const uint32_t* words = matcher.allowed();
    std::vector<int32_t> different;
    for (int32_t id = 0; id < vocabulary_->valid_size(); ++id) {
      GrammarMatcher copy = matcher;
      if (copy.accept(id) != is_set(words, id)) different.push_back(id);
    }
    return list(different);
  }

  // Random walks over allowed tokens: [text, whether it ended, tokens where mask and accept()
  // differ (checked at every step if check is set)].
  std::string generate(const Json& command) const {
    std::mt19937 random(static_cast<uint32_t>(command.at("seed").as_int()));
    const int64_t limit = command.at("steps").as_int();
    const bool check = command.at("check").as_bool();
    GrammarMatcher matcher(grammar_);
    std::string text;
    size_t different = 0;
    bool ended = false;
    for (int64_t step = 0; step < limit && !ended; ++step) {
      const uint32_t* words = matcher.allowed();
      std::vector<int32_t> ids;
      for (int32_t id = 0; id < vocabulary_->valid_size(); ++id) {
        if (is_set(words, id)) ids.push_back(id);
        if (!check) continue;
        GrammarMatcher copy = matcher;
        different += copy.accept(id) != is_set(words, id);
      }
      if (ids.empty()) throw Error(MLCB_ERROR_INTERNAL, "no token may follow " + text);
      // Short tokens more often, or nothing would ever come to an end.
      int32_t id = ids[random() % ids.size()];
      for (int tries = 0; tries < 3; ++tries) {
        const int32_t other = ids[random() % ids.size()];
        if (vocabulary_->token_bytes(other).size() < vocabulary_->token_bytes(id).size())
          id = other;
      }
      if (!matcher.accept(id)) throw Error(MLCB_ERROR_INTERNAL, "an allowed token is refused");
      text += vocabulary_->token_bytes(id);
      ended = vocabulary_->is_stop(id);
      if (ended && !matcher.must_end()) throw Error(MLCB_ERROR_INTERNAL, "it goes on");
    }
    return "[" + quoted_hex(text) + "," + (ended ? "true" : "false") + "," +
           std::to_string(different) + "]";
  }

  // Accepts the tokens of each text and takes the mask before each; rounds times. Microseconds of
  // each mask, and of each accept, of the last round and of the first.
  std::string time(const Json& command) const {
    std::vector<double> first_masks, masks, accepts;
    const int64_t rounds = command.at("rounds").as_int();
    for (int64_t round = 0; round < rounds; ++round) {
      masks.clear();
      accepts.clear();
      for (const Json& text : command.at("texts").items()) {
        GrammarMatcher matcher(grammar_);
        for (const Json& item : text.items()) {
          const int32_t id = static_cast<int32_t>(item.as_int());
          auto start = Clock::now();
          const uint32_t* words = matcher.allowed();
          masks.push_back(microseconds_since(start));
          const bool set = is_set(words, id);
          start = Clock::now();
          if (matcher.accept(id) != set) throw Error(MLCB_ERROR_INTERNAL, "mask and accept differ");
          accepts.push_back(microseconds_since(start));
          if (!set) break;
        }
      }
      if (round == 0) first_masks = masks;
    }
    return "{\"first\":" + list(first_masks) + ",\"masks\":" + list(masks) +
           ",\"accepts\":" + list(accepts) + "}";
  }

  // Many matchers of one grammar at once; the number of threads whose masks differ from those
  // that one thread sees.
  std::string threads(const Json& command) const {
    const std::string text = from_hex(command.at("text").as_string());
    auto run_once = [&](const std::shared_ptr<const Grammar>& grammar) {
      std::vector<uint32_t> sums;
      GrammarMatcher matcher(grammar);
      for (size_t i = 0; i <= text.size(); ++i) {
        const uint32_t* words = matcher.allowed();
        uint32_t sum = 0;
        for (size_t w = 0; w < vocabulary_->mask_words(); ++w) sum = sum * 31 + words[w];
        sums.push_back(sum);
        if (i < text.size()) matcher.accept_bytes({text.data() + i, 1});
      }
      return sums;
    };
    const auto expected = run_once(grammar_);
    const auto fresh = Grammar::compile(kind_of(command.at("kind").as_string()),
                                        command.at("grammar").as_string(), vocabulary_);
    std::vector<int> wrong(4, 0);
    std::vector<std::thread> threads;
    for (int& mark : wrong) {
      threads.emplace_back([&] {
        for (int round = 0; round < 3; ++round) mark += run_once(fresh) != expected;
      });
    }
    for (std::thread& thread : threads) thread.join();
    return std::to_string(std::count_if(wrong.begin(), wrong.end(), [](int w) { return w != 0; }));
  }

  // How many different grammars a cache gives for a sequence of texts.
  std::string cache(const Json& command) const {
    GrammarCache cache(vocabulary_);
    std::vector<std::shared_ptr<const Grammar>> seen;
    std::vector<size_t> numbers;
    for (const Json& text : command.at("texts").items()) {
      const auto grammar = cache.get(kind_of(command.at("kind").as_string()), text.as_string());
      const auto found = std::find(seen.begin(), seen.end(), grammar);
      numbers.push_back(static_cast<size_t>(found - seen.begin()));
      if (found == seen.end()) seen.push_back(grammar);
    }
    return list(numbers);
  }

  std::shared_ptr<const GrammarVocabulary> vocabulary_;
  std::shared_ptr<const Grammar> grammar_;
};

}  // namespace
}  // namespace mlcb

int main() {
  mlcb::Driver driver;
  return mlcb::answer_commands(&driver);
}
