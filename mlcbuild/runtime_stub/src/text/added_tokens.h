// The added tokens of a tokenizer.json (special ones and others): found in text before the model
// sees it.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/json.h"
#include "text/byte_trie.h"
#include "text/normalizer.h"
#include "text/vocab.h"

namespace mlcb {

struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool special = false, single_word = false, lstrip = false, rstrip = false;
  bool normalized = false;  // looked for in normalized text
  std::string normal;       // the content, normalized if that is so: what is looked for and decoded
};

class AddedTokens {
 public:
  // json: the list, or nullptr. Throws Error(MLCB_ERROR_BUNDLE) for ids that contradict the
  // vocabulary or are not those that Hugging Face tokenizers would give.
  AddedTokens(const Json* json, const Vocab& vocab, const Normalizer& normalizer);
  AddedTokens(const AddedTokens&) = delete;
  AddedTokens& operator=(const AddedTokens&) = delete;

  const AddedToken* find(int32_t id) const;  // nullptr: none
  int32_t find(std::string_view content) const;
  int32_t size() const { return size_; }  // highest id + 1
  const std::vector<AddedToken>& all() const { return tokens_; }

 private:
  void add(AddedToken token, const Vocab& vocab);

  std::vector<AddedToken> tokens_;
  std::unordered_map<int32_t, const AddedToken*> by_id_;
  std::unordered_map<std::string_view, int32_t> by_content_;
  int32_t size_ = 0;
};

// Cuts text at some of the added tokens.
class AddedTokenMatcher {
 public:
  // token must outlive the matcher. Throws Error(MLCB_ERROR_UNSUPPORTED) if its text is too long,
  // or nothing once normalized.
  void add(const AddedToken* token);
  // After the last add. Throws Error(MLCB_ERROR_UNSUPPORTED) if two have the same text.
  void finish();
  bool empty() const { return trie_.empty(); }

  struct Span {
    size_t begin, end;
    const AddedToken* token;  // nullptr: text between tokens
  };
  // Cuts text at the leftmost, longest tokens. special: whether special tokens count; if not, their
  // text is passed over.
  void split(std::string_view text, bool special, std::vector<Span>* spans) const;

 private:
  std::vector<const AddedToken*> tokens_;
  ByteTrie trie_;
};

}  // namespace mlcb
