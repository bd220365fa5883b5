// Remembers which pages of the KV cache hold which beginnings of texts, for later requests.
#pragma once
#include <cstdint>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/kv_cache.h"

namespace mlcb {

// A radix tree whose edges are whole pages of tokens: a node is one page, known by its parent and
// its tokens. Kept pages that no sequence holds are given back, least recently used first and
// leaves before their parents, when pages run out. Not thread-safe.
class PrefixCache {
 public:
  // `cache` must outlive it. If not enabled, it knows nothing and keeps nothing.
  PrefixCache(KvCache* cache, bool enabled);

  static constexpr int32_t kRoot = -1;

  // The pages of the longest known beginning of tokens[0..count), in whole pages.
  std::vector<int32_t> match(const int32_t* tokens, int64_t count);
  // Makes the page number `index` of the sequence, which holds `tokens` and follows the node
  // `parent`, known. Returns the node; if the same tokens are there already, the sequence goes on
  // with that page and its own is given back. kRoot if parent is no longer known.
  int32_t insert(int32_t parent, const int32_t* tokens, SequenceId sequence, size_t index);
  // Gives back at least `count` idle pages if there are so many; returns how many.
  int64_t evict(int64_t count);
  void clear();

  int64_t nodes() const { return static_cast<int64_t>(children_.size()); }
  int64_t evictions() const { return evictions_; }  // pages so far

 private:
  struct Node {
    bool known = false;
    int32_t parent = kRoot;
    int32_t children = 0;
    uint64_t used = 0;  // when it was last used
    uint64_t key = 0;   // of children_
    std::vector<int32_t> tokens;
  };

  uint64_t key_of(int32_t parent, const int32_t* tokens) const;
  int32_t find(int32_t parent, const int32_t* tokens, uint64_t key) const;
  void touch(int32_t page, uint64_t now);
  void forget(int32_t page);

  KvCache* cache_;
  bool enabled_;
  uint64_t clock_ = 0;
  int64_t evictions_ = 0;
  std::vector<Node> nodes_;                              // by page
  std::unordered_multimap<uint64_t, int32_t> children_;  // hash of (parent, tokens) to page
  std::set<std::pair<uint64_t, int32_t>> leaves_;        // (used, page)
};

}  // namespace mlcb
