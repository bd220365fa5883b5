// libFuzzer targets over the parts that read what others wrote: compiled once for each part, with
// -DFUZZ=fuzz_<part>. An Error is an answer; anything else that ends a run is a fault.
// tests/bench/fuzz_runtime.py builds and runs them.
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/json.h"
#include "exec/params.h"
#include "exec/plan.h"
#include "grammar/grammar.h"
#include "text/chat_template.h"
#include "text/output_parser.h"
#include "text/tokenizer.h"

namespace {

using namespace mlcb;

// The input up to the first 0xFF byte, which no UTF-8 holds, and the rest.
std::pair<std::string, std::string> split(const uint8_t* data, size_t size) {
  const std::string all(reinterpret_cast<const char*>(data), size);
  const size_t cut = all.find('\xFF');
  if (cut == std::string::npos) return {all, "The quick brown fox, 12 \xE4\xBD\xA0!"};
  return {all.substr(0, cut), all.substr(cut + 1)};
}

// Bytes, a few words, one special token that ends a text.
class SmallTokenizer : public Tokenizer {
 public:
  std::vector<int32_t> encode(std::string_view text, bool) const override {
    return std::vector<int32_t>(text.begin(), text.end());
  }
  std::string token_bytes(int32_t id, bool) const override {
    static const char* const kWords[] = {"true", "{\"", "\":", "\"}", "123", "\xE4\xBD", "  ", ""};
    if (id < 256) return std::string(1, static_cast<char>(id));
    return kWords[id - 256];
  }
  std::string decode(const int32_t*, size_t, bool) const override { return {}; }
  bool is_special(int32_t id) const override { return id == 263; }
  int32_t find(std::string_view) const override { return -1; }
  int32_t vocab_size() const override { return 264; }
};

void use(const Tokenizer& tokenizer, std::string_view text) {
  for (bool special : {false, true}) {
    const std::vector<int32_t> ids = tokenizer.encode(text, special);
    for (int32_t id : ids) {
      if (id < 0 || id >= tokenizer.vocab_size()) __builtin_trap();
      tokenizer.token_bytes(id, special);
    }
    tokenizer.decode(ids.data(), ids.size(), special);
  }
}

[[maybe_unused]] void fuzz_tokenizer(const uint8_t* data, size_t size) {
  const auto parts = split(data, size);
  use(*Tokenizer::from_file(parts.first, "fuzz"), parts.second);
}

// The packed form, which holds any byte.
[[maybe_unused]] void fuzz_packed(const uint8_t* data, size_t size) {
  const std::string file(reinterpret_cast<const char*>(data), size);
  use(*Tokenizer::from_file(file, "fuzz"),
      "Hello <|im_end|> w\xC3\xB6rld, the 12  \xE4\xBD\xA0\xFF!\n\n");
}

[[maybe_unused]] void fuzz_grammar(const uint8_t* data, size_t size) {
  static const auto vocabulary =
      std::make_shared<const GrammarVocabulary>(SmallTokenizer(), 264, std::vector<int32_t>{263});
  if (size == 0) return;
  const auto kind = static_cast<mlcb_grammar_kind>(1 + data[0] % 5);
  const auto parts = split(data + 1, size - 1);
  GrammarMatcher matcher(Grammar::compile(kind, parts.first, vocabulary));
  matcher.forced_bytes();
  for (char byte : parts.second) {
    // What the mask says and what accept() does must be one.
    const int32_t token = static_cast<uint8_t>(byte);
    const bool allowed = matcher.allowed()[token / 32] >> (token % 32) & 1;
    if (matcher.accept(token) != allowed) __builtin_trap();
    matcher.forced_bytes();
    if (matcher.must_end() && !matcher.can_end()) __builtin_trap();
  }
}

[[maybe_unused]] void fuzz_template(const uint8_t* data, size_t size) {
  const auto parts = split(data, size);
  const std::string chat =
      "{\"add_bos_token_id\":null,\"chat_version\":2,\"kept_special_tokens\":[],"
      "\"reasoning_format\":null,\"sampling\":null,\"stop_strings\":[],\"takes_tools\":true,"
      "\"stop_token_ids\":[1],\"template\":" +
      json_quote(parts.first) +
      ",\"tokens\":{\"bos_token\":\"<s>\",\"eos_token\":\"</s>\"},"
      "\"tool_format\":null}";
  const ChatTemplate compiled = ChatTemplate::from_json(Json::parse(chat, "fuzz"));
  compiled.render("[{\"role\":\"user\",\"content\":" + json_quote(parts.second) +
                  "},{\"role\":\"assistant\",\"content\":\"b\"}]");
  compiled.render(
      "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\","
      "\"content\":null,\"tool_calls\":[{\"id\":\"1\",\"type\":\"function\",\"function\":"
      "{\"name\":\"f\",\"arguments\":\"{}\"}}]}],\"tools\":[{\"type\":\"function\","
      "\"function\":{\"name\":" +
      json_quote(parts.second) + ",\"parameters\":{}}}]}");
  compiled.render(parts.second);
}

[[maybe_unused]] void fuzz_output(const uint8_t* data, size_t size) {
  if (size == 0) return;
  static const char* const kFormats[] = {"hermes", "llama3", "mistral", ""};
  const auto parser = OutputParser::create(kFormats[data[0] % 4], data[0] & 4 ? "think_tags" : "");
  const std::string_view text(reinterpret_cast<const char*>(data + 1), size - 1);
  const size_t piece = 1 + (data[0] >> 3);
  for (size_t begin = 0; begin < text.size(); begin += piece) {
    Json::parse(parser->push(text.substr(begin, piece), false), "deltas");
  }
  Json::parse(parser->push("", true), "deltas");
}

[[maybe_unused]] void fuzz_plan(const uint8_t* data, size_t size) {
  const Plan plan =
      Plan::parse(std::string_view(reinterpret_cast<const char*>(data), size), "fuzz");
  std::vector<int64_t> values;
  for (const PlanFunction& function : plan.functions) {
    evaluate(function, plan.bounds, plan.where, &values);
  }
}

[[maybe_unused]] void fuzz_params(const uint8_t* data, size_t size) {
  const Params params =
      Params::parse(std::string_view(reinterpret_cast<const char*>(data), size), "fuzz");
  for (const ParamTensor& tensor : params.tensors()) {
    const ParamShard& shard = params.shards().at(tensor.shard);
    if (tensor.offset > shard.size || tensor.nbytes > shard.size - tensor.offset) __builtin_trap();
  }
  params.total_bytes();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    FUZZ(data, size);  // -DFUZZ=fuzz_tokenizer and so on
  } catch (const mlcb::Error&) {
  }
  return 0;
}
