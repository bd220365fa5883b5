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

// Where the rows of a step go: the plan's meta tables (docs/formats.md), to be filled.
struct KvTables {
  int32_t* positions;
  int32_t* slots;
  int32_t* page_begin;
  int32_t* page_skip;  // nullptr if the plan has no window
  int32_t* page_values;
};

// Sequences share pages after a fork or through the prefix cache; a shared page is copied before it
// is written. With a sliding window, pages that no later row can see are given back, except those
// of the attention sinks. A page may also be kept while no sequence holds it (the prefix cache).
// Not thread-safe.
class KvCache {
 public:
  // Reserves `pages` pages for every layer; memory is taken when pages are first written. Throws
  // Error(MLCB_ERROR_MEMORY).
  KvCache(const PlanKv& kv, int64_t pages);

  // A new sequence that begins with the tokens of these pages, all of them full.
  SequenceId add(const std::vector<int32_t>& pages = {});
  void remove(SequenceId id);
  // A new sequence with the same tokens.
  SequenceId fork(SequenceId parent);
  // Drops the last `count` tokens.
  void pop(SequenceId id, int64_t count);
  // Gives back the pages that no row from the sequence's length on can see.
  void drop_unseen(SequenceId id);
  int64_t length(SequenceId id) const { return at(id).length; }
  // Pages in the order of their tokens, without those dropped.
  const std::vector<int32_t>& pages(SequenceId id) const { return at(id).pages; }
  int64_t dropped_pages(SequenceId id) const { return at(id).skip; }
  // The sequence goes on with `page`, which holds the same tokens as its page number `index`.
  void replace_page(SequenceId id, size_t index, int32_t page);

  // Kept pages outlive their sequences.
  void keep(int32_t page);
  void unkeep(int32_t page);
  bool held_by_sequence(int32_t page) const { return references_[static_cast<size_t>(page)] > 0; }

  int64_t page_size() const { return kv_.page_size; }
  int64_t total_pages() const { return static_cast<int64_t>(references_.size()); }
  int64_t free_pages() const { return static_cast<int64_t>(free_.size()); }
  int64_t idle_pages() const { return idle_pages_; }  // kept, held by no sequence
  int64_t pages_for(int64_t tokens) const { return (tokens + kv_.page_size - 1) / kv_.page_size; }
  // The most pages that a sequence of so many tokens holds at any time, if steps append at most
  // `rows` rows to it.
  int64_t most_pages_for(int64_t tokens, int64_t rows) const;
  // Free pages that an append takes.
  int64_t pages_to_take(const KvAppend& append) const;
  // Page ids in all page lists once `appends` are done: the value of kv_nnz.
  int64_t page_ids_after(const std::vector<KvAppend>& appends) const;

  // Makes room for the rows and says where they go; one entry per row, page_values as many as
  // page_ids_after() says. Throws Error(MLCB_ERROR_MEMORY), with nothing changed, if there are not
  // enough free pages. A sequence may occur once.
  void append(const std::vector<KvAppend>& appends, const KvTables& tables);

  // The pages of each layer.
  std::vector<Span> layers() const;

 private:
  struct Sequence {
    int64_t length = 0;
    int64_t skip = 0;  // pages dropped behind the sink pages
    std::vector<int32_t> pages;
  };

  Sequence& at(SequenceId id);
  const Sequence& at(SequenceId id) const;
  int64_t sink_pages() const { return kv_.sink_pages(); }
  bool must_copy_last_page(const Sequence& sequence) const;
  int32_t take_page();
  void retain_page(int32_t page);
  void release_page(int32_t page);
  void copy_page(int32_t from, int32_t to);

  PlanKv kv_;
  std::vector<MemoryRegion> regions_;  // by layer
  std::vector<int32_t> free_;
  std::vector<int32_t> references_;  // sequences that hold the page
  std::vector<bool> kept_;
  int64_t idle_pages_ = 0;
  std::unordered_map<SequenceId, Sequence> sequences_;
  SequenceId next_id_ = 1;
};

}  // namespace mlcb
