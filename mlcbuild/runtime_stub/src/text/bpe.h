// The byte-level BPE model: a vocabulary of byte strings and ranked merges of pairs.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"

namespace mlcb {

class BpeModel {
 public:
  // Throws Error(MLCB_ERROR_UNSUPPORTED) naming an option that this model lacks.
  static BpeModel from_json(const Json& model);

  struct Scratch {
    struct Symbol {
      int32_t id, previous, next;
    };
    struct Candidate {
      int32_t rank, position;
    };
    std::vector<Symbol> symbols;
    std::vector<Candidate> heap;
  };
  // Appends the ids of one word. A byte that has no token becomes unk_token; if there is none it is
  // left out, as Hugging Face tokenizers do. O(n log n).
  void encode(std::string_view word, Scratch* scratch, std::vector<int32_t>* ids) const;

  int32_t size() const { return static_cast<int32_t>(tokens_.size()); }  // highest id + 1
  std::string_view bytes(int32_t id) const;      // what the token stands for
  int32_t find(std::string_view content) const;  // by its spelling in the file; -1: none
  bool has(int32_t id) const { return tokens_[static_cast<size_t>(id)].present; }

 private:
  struct Token {
    uint32_t offset = 0, size = 0;
    bool present = false;
    bool raw = false;  // its spelling is not made of stand-ins for bytes: no merge yields it
  };
  struct Merge {
    int32_t left, right, merged;
  };
  // Of an open-addressed table. The tag, more bits of the hash, spares most looks at the entry.
  struct Bucket {
    uint32_t tag = 0;
    uint32_t entry = 0;  // index + 1; 0: empty
  };

  bool is_token(int32_t id, std::string_view spelled) const;
  int32_t find_bytes(std::string_view bytes, bool raw) const;
  // The rank of a pair (an index into merges_), or -1.
  int32_t find_merge(int32_t left, int32_t right) const;
  void load_vocab(const Json& vocab);
  void load_merges(const Json& merges);
  void add_merge(const Merge& merge);
  void merge_all(Scratch* scratch) const;

  std::string arena_;          // bytes of all tokens
  std::vector<Token> tokens_;  // by id
  std::vector<Merge> merges_;  // by rank
  std::vector<Bucket> token_buckets_, merge_buckets_;
  int32_t byte_ids_[256];
  int32_t unknown_ = -1;
  bool fuse_unknown_ = false, ignore_merges_ = false;
};

}  // namespace mlcb
