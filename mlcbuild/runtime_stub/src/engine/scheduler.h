// Decides which requests run and which of their tokens go into the next step.
#pragma once
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "engine/kv_cache.h"
#include "engine/request.h"

namespace mlcb {

struct SchedulerLimits {
  int64_t rows = 0;       // token rows of a step
  int64_t sequences = 0;  // that run at once
  int64_t pages = 0;      // of the KV cache
};

// Tokens of one request in a step: from request->cached on.
struct ScheduledSlice {
  Request* request;
  int64_t rows;
  bool needs_logits;  // the slice ends with the last known token
};

// First come, first served. A request is admitted when the pages for its longest possible text are
// there, so a running request never has to wait for one. Every step holds one row for each sequence
// that decodes; prompts fill the rows that are left, in order of arrival.
class Scheduler {
 public:
  explicit Scheduler(const SchedulerLimits& limits) : limits_(limits) {}

  // Throws Error(MLCB_ERROR_MEMORY) if the request could never run.
  void check_fits(int64_t token_limit, int64_t prompt_tokens, const KvCache& cache) const;
  void add(std::unique_ptr<Request> request);
  // The next step; empty if there is nothing to do. Admitted requests get a sequence of the cache.
  std::vector<ScheduledSlice> next(KvCache* cache);
  // Takes a request out and frees what it holds; nullptr if it is not here.
  std::unique_ptr<Request> remove(uint64_t id, KvCache* cache);

  const SchedulerLimits& limits() const { return limits_; }
  bool idle() const { return waiting_.empty() && running_.empty(); }
  int64_t reserved_pages() const { return reserved_pages_; }
  std::vector<uint64_t> ids() const;

 private:
  void admit(KvCache* cache);

  SchedulerLimits limits_;
  std::deque<std::unique_ptr<Request>> waiting_;
  std::vector<std::unique_ptr<Request>> running_;  // in order of arrival
  int64_t reserved_pages_ = 0;
};

}  // namespace mlcb
