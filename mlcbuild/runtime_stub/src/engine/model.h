// One model on one kernel library: token rows in, logits out.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/kv_cache.h"
#include "engine/rope_table.h"
#include "exec/bundle.h"
#include "exec/executor.h"
#include "exec/kernel_library.h"
#include "exec/plan.h"
#include "exec/thread_pool.h"

namespace mlcb {

// A run of tokens of one sequence in a step.
struct Slice {
  SequenceId sequence;
  const int32_t* tokens;
  int64_t rows;
};

class Model {
 public:
  // How many pages its KV cache gets; most: what the plan allows.
  using ChoosePages = std::function<int64_t(const PlanKv& kv, int64_t most)>;

  // The bundle must outlive it. Throws Error if plan, params and library do not fit together.
  Model(const Bundle& bundle, const BundleVariant& variant, int threads,
        const ChoosePages& choose_pages);

  // One forward step over all slices (each sequence once). logit_rows: row numbers, counted over
  // all slices, whose logits are wanted. Returns float32 [logit_rows, vocab_size], valid until the
  // next step. The tokens are in the cache afterwards; if an error is thrown, they are not.
  const float* step(const std::vector<Slice>& slices, const std::vector<int32_t>& logit_rows);

  // Times every kernel call from now on; nullptr: none. The profile must outlive the model.
  void set_profile(Profile* profile);

  const Plan& plan() const { return plan_; }
  KvCache& cache() { return cache_; }
  const KvCache& cache() const { return cache_; }
  int64_t max_rows() const { return plan_.bounds[kSeqLen]; }
  int64_t max_logit_rows() const { return plan_.bounds[kLogitRows]; }
  int64_t max_page_ids() const { return plan_.bounds[kKvNnz]; }
  uint64_t arena_bytes() const { return arena_.size(); }
  int threads() const { return pool_.threads(); }
  ThreadPool* pool() { return &pool_; }

 private:
  static Plan load_plan(const Bundle& bundle, const BundleVariant& variant);
  Span table(MetaTable name) const { return bindings_.meta[static_cast<size_t>(name)]; }
  int32_t* int_table(MetaTable name) const { return static_cast<int32_t*>(table(name).data); }
  void bind(const Bundle& bundle);
  int64_t gather_tokens(const std::vector<Slice>& slices);
  const float* forward(int64_t rows, int64_t page_ids, const std::vector<int32_t>& logit_rows);

  Plan plan_;
  KernelLibrary library_;
  std::vector<KernelFn> kernels_;
  ThreadPool pool_;
  KvCache cache_;
  RopeTable rope_;
  int64_t rope_positions_;
  MemoryRegion tables_;
  MemoryRegion arena_;
  Bindings bindings_;
  std::unique_ptr<Function> embed_;
  std::unique_ptr<Function> batch_prefill_;
  Span input_ids_;
  Span logit_positions_;
};

}  // namespace mlcb
