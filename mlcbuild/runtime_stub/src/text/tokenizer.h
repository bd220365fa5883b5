// Text to token ids and back, from a Hugging Face tokenizer.json.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"

namespace mlcb {

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Throws Error(MLCB_ERROR_UNSUPPORTED) naming the component that this runtime lacks.
  static std::unique_ptr<Tokenizer> from_json(const Json& tokenizer_json);
  // From the content of a file: a tokenizer.json, or a packed one (which gives the same ids, and
  // loads several times as fast). where names it in errors.
  static std::unique_ptr<Tokenizer> from_file(std::string_view content, const std::string& where);

  // special: recognize special tokens in the text (ordinary added tokens always are).
  virtual std::vector<int32_t> encode(std::string_view text, bool special) const = 0;
  // The bytes that one token stands for inside a text; empty for special tokens unless
  // keep_special.
  virtual std::string token_bytes(int32_t id, bool keep_special) const = 0;
  // The text of many tokens, as the decoder of the tokenizer.json makes it: mostly the bytes of
  // each, but some decoders strip a space at the very beginning.
  virtual std::string decode(const int32_t* ids, size_t count, bool keep_special) const = 0;
  virtual bool is_special(int32_t id) const = 0;
  // Id of a token by its content (added tokens too); -1 if there is none.
  virtual int32_t find(std::string_view content) const = 0;
  virtual int32_t vocab_size() const = 0;  // highest id + 1
};

}  // namespace mlcb
