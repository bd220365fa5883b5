// The paged KV cache: which page holds which tokens of which sequence, and the pages themselves.
#pragma once
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "core/os.h"
#include "exec/executor.h"
#include "exec/plan.h"

namespace mlcb {

using SequenceId = int64_t;

// Rows that a step appends to one sequence.
struct KvAppend {
  SequenceId sequence;
  int64_t rows;
};

// Sequences share pages after a fork; a shared page is copied before it is written. Not
// thread-safe.
class KvCache {
 public:
  // Reserves `pages` pages for every layer; memory is taken when pages are first written. Throws
  // Error(MLCB_ERROR_MEMORY).
  KvCache(const PlanKv& kv, int64_t pages);

  SequenceId add();
  void remove(SequenceId id);
  // A new sequence with the same tokens.
  SequenceId fork(SequenceId parent);
  // Drops the last `count` tokens.
  void pop(SequenceId id, int64_t count);
  int64_t length(SequenceId id) const;

  int64_t page_size() const { return kv_.page_size; }
  int64_t total_pages() const { return static_cast<int64_t>(references_.size()); }
  int64_t free_pages() const { return static_cast<int64_t>(free_.size()); }
  int64_t pages_for(int64_t tokens) const { return (tokens + kv_.page_size - 1) / kv_.page_size; }
  // Page ids in all page lists once `appends` are done: the value of kv_nnz.
  int64_t page_ids_after(const std::vector<KvAppend>& appends) const;

  // Makes room for the rows and says where they go: fills `positions`, `slots`, `page_begin` (one
  // entry per row) and `page_values`. Throws Error(MLCB_ERROR_MEMORY), with nothing changed, if
  // there are not enough free pages. A sequence may occur once.
  void append(const std::vector<KvAppend>& appends, int32_t* positions, int32_t* slots,
              int32_t* page_begin, int32_t* page_values);

  // The pages of each layer.
  std::vector<Span> layers() const;

 private:
  struct Sequence {
    int64_t length = 0;
    std::vector<int32_t> pages;
  };

  Sequence& at(SequenceId id);
  const Sequence& at(SequenceId id) const;
  int64_t pages_to_take(const KvAppend& append) const;
  bool must_copy_last_page(const Sequence& sequence) const;
  int32_t take_page();
  void release_page(int32_t page);
  void copy_page(int32_t from, int32_t to);

  PlanKv kv_;
  std::vector<MemoryRegion> regions_;  // by layer
  std::vector<int32_t> free_;
  std::vector<int32_t> references_;  // by page
  std::unordered_map<SequenceId, Sequence> sequences_;
  SequenceId next_id_ = 1;
};

}  // namespace mlcb
