// The unigram model: of all ways to cut a word into tokens, the one with the highest score.
#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

#include "core/json.h"
#include "text/byte_trie.h"
#include "text/vocab.h"

namespace mlcb {

class UnigramModel {
 public:
  // scores: by id; the ids of vocab are 0 and up. vocab must outlive it. Throws
  // Error(MLCB_ERROR_UNSUPPORTED or _BUNDLE).
  UnigramModel(const Json& options, const Vocab& vocab, std::vector<double> scores);

  // Buffers of one call.
  struct Scratch {
    struct Node {
      double score;  // of the best way from the beginning to here
      int32_t id;    // of its last token
      uint32_t begin;
    };
    std::vector<Node> nodes;  // by byte of the word
    std::vector<uint32_t> ends;
  };
  // Appends the ids of one word. Throws Error(MLCB_ERROR_ARGUMENT) if it has a character that the
  // model knows no token for, and no unk_id either.
  void encode(std::string_view word, Scratch* scratch, std::vector<int32_t>* ids) const;

 private:
  void append_piece(std::string_view piece, std::vector<int32_t>* ids) const;

  const Vocab* vocab_;
  std::vector<double> scores_;
  ByteTrie trie_;
  double unknown_score_ = 0;
  int32_t unknown_ = -1;
  bool byte_fallback_ = false;
  int32_t byte_ids_[256];
};

}  // namespace mlcb
