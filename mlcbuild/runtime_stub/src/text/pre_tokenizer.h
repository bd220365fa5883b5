// Splits text into the words that BPE works on, as the pre_tokenizer of a tokenizer.json says.
#pragma once
#include <vector>

#include "core/json.h"
#include "text/regex.h"

namespace mlcb {

struct Piece {
  size_t begin, end;
};

class PreTokenizer {
 public:
  // Byte-level pre-tokenizers only: ByteLevel, alone or as the last of a Sequence of Split and
  // Digits. Throws Error(MLCB_ERROR_UNSUPPORTED) naming anything else.
  static PreTokenizer from_json(const Json* json);

  // One for each thread: the buffers of the matchers.
  using Matchers = std::vector<RegexMatcher>;
  Matchers make_matchers() const;

  // Splits *text into the pieces, which are never empty. Prefix spaces are put into *text.
  void split(std::vector<RegexChar>* text, std::vector<Piece>* pieces, Matchers* matchers) const;

 private:
  enum class StepKind { kRegex, kDigits, kPrefixSpace };
  enum class Behavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };
  struct Step {
    StepKind kind = StepKind::kRegex;
    Regex regex;
    Behavior behavior = Behavior::kIsolated;
    bool invert = false;
  };
  struct Span {
    size_t begin, end;
    bool match;
  };

  void add(const Json& json, bool* has_byte_level);
  static void apply_behavior(Behavior behavior, const std::vector<Span>& spans,
                             std::vector<Piece>* out);

  std::vector<Step> steps_;
};

}  // namespace mlcb
