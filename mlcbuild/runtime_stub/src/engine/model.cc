#include "engine/model.h"

#include <algorithm>
#include <cstring>

#include "core/error.h"

namespace mlcb {
namespace {

uint64_t round_to_page(uint64_t bytes) { return (bytes + 4095) / 4096 * 4096; }

// Comes before anything of the cache's size is allocated.
int64_t within_bound(const Plan& plan, int64_t kv_pages) {
  if (kv_pages <= plan.bounds[kKvPages]) return kv_pages;
  throw Error(MLCB_ERROR_ARGUMENT, "a KV cache of " + std::to_string(kv_pages) + " pages of " +
                                       std::to_string(plan.kv.page_size) +
                                       " tokens was asked for, the bundle was built for at most " +
                                       std::to_string(plan.bounds[kKvPages] * plan.kv.page_size) +
                                       " tokens\nhint: lower kv_tokens");
}

}  // namespace

Plan Model::load_plan(const Bundle& bundle, const BundleVariant& variant) {
  const std::string path = bundle.path_of(variant.plan);
  Plan plan = Plan::parse(MappedFile(path).text(), path);
  auto require = [&](bool holds, const std::string& what) {
    if (!holds) throw Error(MLCB_ERROR_BUNDLE, path + ": " + what + " differs from bundle.json");
  };
  require(plan.vocab_size == bundle.vocab_size(), "vocab_size");
  require(plan.kv.page_size == bundle.limits().page_size, "kv.page_size");
  require(plan.activations == variant.activations, "activations");
  for (ShapeVar var : {kSeqLen, kLogitRows, kKvPages, kKvNnz}) {
    if (plan.bounds[var] < 1) {
      throw Error(MLCB_ERROR_BUNDLE, path + ": no bound for " + kShapeVarNames[var]);
    }
  }
  if (plan.rope.present && plan.bounds[kRopePositions] < bundle.limits().context_window_size) {
    throw Error(MLCB_ERROR_BUNDLE, path + ": the bound of rope_positions, " +
                                       std::to_string(plan.bounds[kRopePositions]) +
                                       ", is below the context window of " +
                                       std::to_string(bundle.limits().context_window_size));
  }
  return plan;
}

Model::Model(const Bundle& bundle, const BundleVariant& variant, int threads,
             const ChoosePages& choose_pages)
    : plan_(load_plan(bundle, variant)),
      library_(bundle.path_of(variant.kernels)),
      kernels_(resolve_kernels(plan_, library_)),
      pool_(threads),
      cache_(plan_.kv, within_bound(plan_, choose_pages(plan_.kv, plan_.bounds[kKvPages]))),
      rope_(plan_.rope, bundle.limits().context_window_size),
      rope_positions_(bundle.limits().context_window_size) {
  bind(bundle);
}

void Model::bind(const Bundle& bundle) {
  const uint64_t row_bytes = round_to_page(static_cast<uint64_t>(max_rows()) * sizeof(int32_t));
  const uint64_t logit_bytes =
      round_to_page(static_cast<uint64_t>(max_logit_rows()) * sizeof(int32_t));
  const uint64_t page_bytes =
      round_to_page(static_cast<uint64_t>(max_page_ids()) * sizeof(int32_t));
  tables_ = MemoryRegion(5 * row_bytes + logit_bytes + page_bytes, "the tables of a step");
  uint8_t* next = tables_.data();
  auto take = [&next](uint64_t bytes) {
    Span span{next, bytes};
    next += bytes;
    return span;
  };
  auto place = [&](MetaTable name) -> Span& { return bindings_.meta[static_cast<size_t>(name)]; };
  place(MetaTable::kPositions) = take(row_bytes);
  place(MetaTable::kSlots) = take(row_bytes);
  place(MetaTable::kPageBegin) = take(row_bytes);
  place(MetaTable::kPageSkip) = take(row_bytes);
  input_ids_ = take(row_bytes);
  logit_positions_ = take(logit_bytes);
  place(MetaTable::kPageValues) = take(page_bytes);
  place(MetaTable::kRopeCosSin) = rope_.span();
  bindings_.params = bind_params(plan_, bundle.params());
  bindings_.layers = cache_.layers();

  // Outputs of one function never overlap with another's memory (docs/formats.md), so what embed
  // returns can be read by batch_prefill although both work in the same arena.
  const PlanFunction& embed = plan_.function("embed");
  const PlanFunction& batch_prefill = plan_.function("batch_prefill");
  const uint64_t bytes = std::max(embed.arena_bytes, batch_prefill.arena_bytes);
  arena_ = MemoryRegion(round_to_page(bytes), "activations");
  arena_.prefer_large_pages();
  batch_prefill_ = std::make_unique<Function>(plan_, batch_prefill, kernels_, bindings_,
                                              Span{arena_.data(), batch_prefill.arena_bytes});
  embed_ = std::make_unique<Function>(plan_, embed, kernels_, bindings_,
                                      Span{arena_.data(), embed.arena_bytes});
}

void Model::set_profile(Profile* profile) {
  embed_->set_profile(profile);
  batch_prefill_->set_profile(profile);
}

int64_t Model::gather_tokens(const std::vector<Slice>& slices) {
  int64_t rows = 0;
  for (const Slice& slice : slices) {
    if (slice.rows < 1 || rows + slice.rows > max_rows()) {
      throw Error(MLCB_ERROR_INTERNAL,
                  "a step of more than " + std::to_string(max_rows()) + " rows was asked for");
    }
    std::memcpy(static_cast<int32_t*>(input_ids_.data) + rows, slice.tokens,
                static_cast<size_t>(slice.rows) * sizeof(int32_t));
    rows += slice.rows;
  }
  return rows;
}

const float* Model::step(const std::vector<Slice>& slices, const std::vector<int32_t>& logit_rows) {
  const int64_t rows = gather_tokens(slices);
  std::vector<KvAppend> appends;
  int64_t end = 0;
  for (const Slice& slice : slices) {
    appends.push_back({slice.sequence, slice.rows});
    end = std::max(end, cache_.length(slice.sequence) + slice.rows);
  }
  if (end > rope_positions_) {
    throw Error(MLCB_ERROR_INTERNAL, "a sequence grew beyond the context window");
  }
  const int64_t page_ids = cache_.page_ids_after(appends);
  if (page_ids > max_page_ids()) {
    throw Error(MLCB_ERROR_INTERNAL, "a step needs " + std::to_string(page_ids) +
                                         " page ids, the plan allows " +
                                         std::to_string(max_page_ids()));
  }
  rope_.extend_to(end);
  KvTables tables;
  tables.positions = int_table(MetaTable::kPositions);
  tables.slots = int_table(MetaTable::kSlots);
  tables.page_begin = int_table(MetaTable::kPageBegin);
  tables.page_skip = plan_.kv.window > 0 ? int_table(MetaTable::kPageSkip) : nullptr;
  tables.page_values = int_table(MetaTable::kPageValues);
  cache_.append(appends, tables);
  try {
    return forward(rows, page_ids, logit_rows);
  } catch (...) {
    for (const KvAppend& append : appends) cache_.pop(append.sequence, append.rows);
    throw;
  }
}

const float* Model::forward(int64_t rows, int64_t page_ids,
                            const std::vector<int32_t>& logit_rows) {
  // The last row stands in where no logits are wanted: the plan computes at least one row.
  std::vector<int32_t> positions = logit_rows;
  if (positions.empty()) positions.push_back(static_cast<int32_t>(rows - 1));
  if (static_cast<int64_t>(positions.size()) > max_logit_rows()) {
    throw Error(MLCB_ERROR_INTERNAL, "a step of more than " + std::to_string(max_logit_rows()) +
                                         " rows of logits was asked for");
  }
  std::memcpy(logit_positions_.data, positions.data(), positions.size() * sizeof(int32_t));
  ShapeValues values{};
  values[kSeqLen] = rows;
  values[kLogitRows] = static_cast<int64_t>(positions.size());
  values[kKvPages] = cache_.total_pages();
  values[kKvNnz] = page_ids;
  values[kRopePositions] = rope_positions_;
  ThreadPool::Scope scope(&pool_);
  const Span embeddings = embed_->run({input_ids_}, values);
  const Span logits = batch_prefill_->run({embeddings, logit_positions_}, values);
  const uint64_t needed =
      positions.size() * static_cast<uint64_t>(plan_.vocab_size) * sizeof(float);
  if (logits.bytes != needed) {
    throw Error(MLCB_ERROR_BUNDLE, plan_.where + ": batch_prefill returns " +
                                       std::to_string(logits.bytes) + " bytes of logits, not " +
                                       std::to_string(needed));
  }
  return static_cast<const float*>(logits.data);
}

}  // namespace mlcb
