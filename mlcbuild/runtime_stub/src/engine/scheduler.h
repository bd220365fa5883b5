// Decides which texts run and which of their tokens go into the next step.
#pragma once
#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "engine/kv_cache.h"
#include "engine/prefix_cache.h"
#include "engine/request.h"

namespace mlcb {

struct SchedulerLimits {
  int64_t rows = 0;        // token rows of a step
  int64_t logit_rows = 0;  // of them, rows whose logits are computed
  int64_t sequences = 0;   // that run at once
  int64_t pages = 0;       // of the KV cache
};

// Tokens of one choice in a step: those from choice->cached on, then `drafts` of its guesses.
struct ScheduledSlice {
  Choice* choice;
  int64_t rows;  // guesses included
  int64_t drafts;
  bool needs_logits;  // the slice reaches the last known token
};

// First come, first served. A choice is admitted when the pages for its tokens are there, with one
// to spare for each that runs; what it will generate is not reserved. When a text needs a page and
// there is none, the prefix cache gives back what nobody uses; then the choice that came last is
// preempted: it waits again, and its tokens are computed anew later (or found in the prefix cache).
// Every step holds a row for each text that decodes; prompts share the rows that are left evenly,
// so a long one does not hold up a short one.
class Scheduler {
 public:
  // The caches must outlive it. forget is told of every choice that loses its sequence.
  Scheduler(const SchedulerLimits& limits, KvCache* cache, PrefixCache* prefixes,
            std::function<void(const Choice&)> forget);

  // Throws Error(MLCB_ERROR_TOO_LONG) if a text of so many tokens could never run.
  void check_fits(int64_t token_limit, int64_t prompt_tokens) const;
  void add(std::unique_ptr<Choice> choice);
  // A choice that was branched off: it runs at once if there is a place, or waits.
  Choice* add_fork(std::unique_ptr<Choice> choice, SequenceId parent);
  // Lets waiting choices in.
  void admit();
  // The next step; empty if there is nothing to do. At most max_drafts guesses of each choice.
  std::vector<ScheduledSlice> next();
  // Takes a choice out and frees what it holds.
  std::unique_ptr<Choice> remove(Choice* choice);
  // Frees `pages` pages that no running choice holds, as far as possible; whether there are so
  // many now.
  bool make_free(int64_t pages);

  const SchedulerLimits& limits() const { return limits_; }
  // Rows of logits that running texts leave for guesses.
  int64_t spare_rows() const {
    return std::min(limits_.rows, limits_.logit_rows) - static_cast<int64_t>(running_.size());
  }
  const std::vector<std::unique_ptr<Choice>>& running() const { return running_; }
  const std::vector<std::unique_ptr<Choice>>& waiting() const { return waiting_; }
  bool idle() const { return waiting_.empty() && running_.empty(); }
  int64_t preemptions() const { return preemptions_; }
  std::vector<Choice*> choices_of(uint64_t request_id) const;
  std::vector<Choice*> all() const;

 private:
  using List = std::vector<std::unique_ptr<Choice>>;

  static void insert_sorted(List* list, std::unique_ptr<Choice> choice);
  int64_t promised_pages() const;
  void preempt(Choice* choice, std::vector<ScheduledSlice>* slices);
  bool add_decode(Choice* choice, int64_t drafts, std::vector<ScheduledSlice>* slices);
  void add_prefills(int64_t rows_left, std::vector<ScheduledSlice>* slices);
  int64_t pages_taken(const std::vector<ScheduledSlice>& slices) const;

  SchedulerLimits limits_;
  KvCache* cache_;
  PrefixCache* prefixes_;
  std::function<void(const Choice&)> forget_;
  List waiting_;  // both in order of arrival
  List running_;
  int64_t preemptions_ = 0;
};

}  // namespace mlcb
