// The normalization table inside a SentencePiece model: a trie from texts to replacements.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace mlcb {

class Precompiled {
 public:
  // Throws Error(MLCB_ERROR_BUNDLE) if it is no such table.
  static Precompiled from_base64(std::string_view base64);

  // Returns whether the text changed; the new one is in *out then.
  bool apply(std::string_view text, std::string* out) const;

 private:
  bool transform(std::string_view chunk, std::string_view* replacement) const;

  std::vector<uint32_t> units_;  // the double-array trie (Darts-clone)
  std::string replacements_;     // each ends with a zero byte
};

}  // namespace mlcb
