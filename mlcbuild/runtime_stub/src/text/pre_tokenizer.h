// Splits text into the words that a model works on, as the pre_tokenizer of a tokenizer.json says.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"
#include "text/regex.h"

namespace mlcb {

struct Piece {
  size_t begin, end;
};

class PreTokenizer {
 public:
  // json: nullptr or null for none. Throws Error(MLCB_ERROR_UNSUPPORTED) naming a kind or an option
  // that this runtime lacks.
  static PreTokenizer from_json(const Json* json);

  // Whether words are handed on as bytes (ByteLevel, which can only be the last step).
  bool byte_level() const { return byte_level_; }
  // Whether it would leave this text in one piece.
  bool keeps(std::string_view text) const;

  // One for each call: the buffers of the matchers.
  using Matchers = std::vector<RegexMatcher>;
  Matchers make_matchers() const;

  // Splits *text into the pieces, which are never empty. Characters may be put into *text or be
  // replaced there. at_begin: the text stands at the beginning of what was to be encoded.
  void split(std::vector<RegexChar>* text, std::vector<Piece>* pieces, Matchers* matchers,
             bool at_begin) const;

 private:
  enum class StepKind { kRegex, kLiteral, kChars, kWhitespace, kPrefix };
  enum class CharKind { kDigit, kPunctuation, kSpace };
  enum class Behavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };
  enum class Prefix { kNever, kFirst, kAlways };
  struct Step {
    StepKind kind = StepKind::kRegex;
    Regex regex;          // of kRegex and kLiteral
    std::string literal;  // of kLiteral
    CharKind chars = CharKind::kDigit;
    Behavior behavior = Behavior::kIsolated;
    bool invert = false;
    Prefix prefix = Prefix::kAlways;  // of kPrefix: when `space` is put in front
    uint32_t space = ' ';             // what spaces become
  };
  struct Span {
    size_t begin, end;
    bool match;
  };

  void add(const Json& json);
  void add_split(const Json& json);
  void add_metaspace(const Json& json);
  static Behavior behavior_of(const Json* name, Behavior fallback, const std::string& type);
  static void apply_prefix(const Step& step, bool at_begin, std::vector<RegexChar>* text,
                           std::vector<Piece>* pieces);
  static void find_words(const std::vector<RegexChar>& text, const Piece& piece,
                         std::vector<Piece>* out);
  static bool matches(CharKind kind, RegexChar c);
  static void apply_behavior(Behavior behavior, const std::vector<Span>& spans,
                             std::vector<Piece>* out);

  std::vector<Step> steps_;
  bool byte_level_ = false;
};

}  // namespace mlcb
