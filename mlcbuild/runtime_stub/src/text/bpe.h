// The BPE model: ranked merges of pairs of tokens, over bytes or over characters with a fallback to
// bytes.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"
#include "text/vocab.h"

namespace mlcb {

class BpeModel {
 public:
  struct Merge {
    int32_t left, right, merged;
  };
  // merges: by rank. Throws Error(MLCB_ERROR_UNSUPPORTED) naming an option that this model lacks,
  // and Error(MLCB_ERROR_BUNDLE) for ids that are not in the vocabulary. vocab must outlive it.
  BpeModel(const Json& options, const Vocab& vocab, const std::vector<Merge>& merges);

  // Buffers of one call.
  struct Scratch {
    struct Symbol {
      int32_t id, previous, next;
    };
    std::vector<int32_t> start;  // ids before merging
    std::vector<Symbol> symbols;
    std::vector<uint64_t> heap;  // rank << 32 | position
  };
  // Appends the ids of one word. What has no token becomes unk_token; if there is none it is left
  // out, as Hugging Face tokenizers do. O(n log n).
  void encode(std::string_view word, Scratch* scratch, std::vector<int32_t>* ids) const;

  // The end of a part of text, from `from` on, that no merge joins to what follows: encoding the
  // parts one by one gives the ids of the whole. At least one character, at most all of it.
  size_t independent_end(std::string_view text, size_t from) const;

 private:
  // Of an open-addressed table, keyed by both ids.
  struct Bucket {
    int32_t left = 0, right = 0;
    int32_t rank = -1;  // -1: empty
    int32_t merged = 0;
  };

  // What matters of a token here, small enough to be at hand for a million look-ups.
  struct Edges {
    bool present = false;
    bool itself = true;  // it stands for what it spells (unlike <0x0A> or unk_token)
    uint8_t first = 0;   // a column of joints_
    uint8_t last = 0;    // a row
  };

  const Bucket* find_merge(int32_t left, int32_t right) const;
  void read_options(const Json& options);
  void load_merges(const std::vector<Merge>& merges, const std::vector<Edges>& edges);
  void load_starts();
  std::vector<Edges> find_edges() const;
  void find_joints(const std::vector<Merge>& merges, const std::vector<Edges>& edges);
  void start_bytes(std::string_view word, std::vector<int32_t>* start) const;
  void start_chars(std::string_view word, std::vector<int32_t>* start) const;
  void merge_few(std::vector<int32_t>* symbols) const;
  void merge_many(Scratch* scratch) const;

  const Vocab* vocab_;
  std::vector<Bucket> buckets_;
  size_t longest_probe_ = 0;
  int32_t byte_ids_[256];   // tokens that stand for one byte: all of them, or <0x00> to <0xFF>
  int32_t ascii_ids_[128];  // tokens that are one character
  // Bit c of joints_[b]: some merged token holds the character c behind a character that ends with
  // byte b. c is an ASCII character, or 128 for the SentencePiece space U+2581.
  uint64_t joints_[256][3];
  bool splits_ = false;  // whether joints_ can be used
  bool has_all_bytes_ = false;
  bool space_known_ = false;
  int32_t unknown_ = -1;
  bool byte_fallback_ = false, fuse_unknown_ = false, ignore_merges_ = false;
};

}  // namespace mlcb
