// From tokens back to text: the decoder of a tokenizer.json.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"
#include "text/regex.h"

namespace mlcb {

class Decoder {
 public:
  // Throws Error(MLCB_ERROR_UNSUPPORTED) naming a kind that this runtime lacks, or the lack of a
  // decoder.
  static Decoder from_json(const Json* json);

  // Whether it only puts together the bytes that byte-level spellings stand for.
  bool is_byte_level() const;

  // The text of tokens, given as the file spells them.
  std::string decode(std::vector<std::string> tokens) const;
  // The bytes of one token in the middle of a text: what happens only at the ends of a text is left
  // out, and a token that stands for one byte becomes that byte.
  std::string decode_inside(std::string token) const;

 private:
  enum class Kind {
    kByteLevel,
    kByteFallback,
    kFuse,
    kStrip,
    kReplaceText,
    kReplaceRegex,
    kMetaspace
  };
  struct Step {
    Kind kind = Kind::kFuse;
    std::string pattern, content;  // Strip and Metaspace: pattern is one character
    Regex regex;
    size_t start = 0, stop = 0;
    bool at_begin = false;  // Metaspace: the first token loses its spaces
  };

  void add(const Json& json);
  static void replace(const Step& step, std::string* token);
  static void strip(const Step& step, std::string* token);
  static void fall_back(std::vector<std::string>* tokens);

  std::vector<Step> steps_;
};

}  // namespace mlcb
