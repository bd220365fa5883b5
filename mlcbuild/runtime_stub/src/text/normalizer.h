// What a tokenizer does to text before it splits it: the normalizer of a tokenizer.json.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"
#include "text/precompiled.h"
#include "text/regex.h"
#include "text/unicode.h"

namespace mlcb {

class Normalizer {
 public:
  // json: nullptr or null for none. Throws Error(MLCB_ERROR_UNSUPPORTED) naming a kind or an option
  // that this runtime lacks.
  static Normalizer from_json(const Json* json);

  bool empty() const { return steps_.empty(); }

  // Buffers of one call.
  struct Scratch {
    std::string text, other;
    std::vector<RegexChar> chars;
    // Whether the first character is not one that stood, or was put, at the very beginning.
    bool front_lost = false;
    size_t front_matched = 0;
  };
  // Returns the normalized text: either the one given, or one in *scratch. Bytes that are not UTF-8
  // stay as they are.
  std::string_view apply(std::string_view text, Scratch* scratch) const;

 private:
  enum class Kind {
    kForm,
    kPrepend,
    kReplaceText,
    kReplaceRegex,
    kLowercase,
    kStrip,
    kStripAccents,
    kPrecompiled
  };
  struct Step {
    Kind kind = Kind::kForm;
    UnicodeForm form = UnicodeForm::kNfc;
    std::string pattern, content;
    Regex regex;
    Precompiled precompiled;
    bool left = false, right = false;
  };

  void add(const Json& json);
  void add_replace(const Json& json);
  // Returns whether the text changed; the new one is in *out then.
  static bool apply_step(const Step& step, std::string_view text, Scratch* scratch,
                         std::string* out);
  static bool loses_front(const Step& step, std::string_view before, const Scratch& scratch);

  std::vector<Step> steps_;
};

// Replaces the matches of a regular expression, as the normalizer and the decoder of that name do.
// Returns whether there were any; *at_front, if given, how many characters one took at the
// beginning.
bool replace_matches(const Regex& regex, std::string_view text, std::string_view content,
                     std::vector<RegexChar>* chars, std::string* out, size_t* at_front = nullptr);
// The same for the occurrences of a text; pattern is not empty.
bool replace_text(std::string_view text, std::string_view pattern, std::string_view content,
                  std::string* out);

}  // namespace mlcb
