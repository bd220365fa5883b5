// What grammars need to know of a tokenizer: the bytes of every token, as a trie.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace mlcb {

class GrammarVocabulary {
 public:
  // Ids below valid_size take part. Special tokens stand for no text, but for kept_ids, which stay
  // in the text of an answer (markers of tool calls). stop_ids end a text. Takes a few hundred
  // milliseconds for 128k tokens at most; thread-safe afterwards.
  GrammarVocabulary(const Tokenizer& tokenizer, int32_t valid_size,
                    const std::vector<int32_t>& stop_ids,
                    const std::vector<int32_t>& kept_ids = {});

  // A node stands for the bytes on the way to it. A node's subtree is what follows it, up to end.
  struct Node {
    uint32_t end;
    int32_t token;   // the token with these bytes, or -1; more of them: same_bytes
    uint16_t depth;  // 1 for a token's first byte
    uint8_t byte;
  };

  int32_t valid_size() const { return valid_size_; }
  size_t mask_words() const { return (static_cast<size_t>(valid_size_) + 31) / 32; }
  const std::vector<int32_t>& stop_ids() const { return stop_ids_; }
  bool is_stop(int32_t token) const;
  // Empty if the token stands for no text (or is out of range).
  std::string_view token_bytes(int32_t token) const;
  size_t max_bytes() const { return max_bytes_; }  // of a token
  const std::vector<Node>& trie() const { return trie_; }
  int32_t same_bytes(int32_t token) const { return same_bytes_[static_cast<size_t>(token)]; }

 private:
  int32_t valid_size_;
  std::vector<int32_t> stop_ids_;
  std::string bytes_;              // of all tokens
  std::vector<uint32_t> offsets_;  // valid_size + 1
  std::vector<Node> trie_;
  std::vector<int32_t> same_bytes_;  // the next token with the same bytes, or -1
  size_t max_bytes_ = 0;
};

}  // namespace mlcb
