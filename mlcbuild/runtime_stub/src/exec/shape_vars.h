// The shape variables that plans may use.
#pragma once
#include <array>
#include <cstdint>

namespace mlcb {

enum ShapeVar : int {
  kSeqLen,         // token rows of a step
  kLogitRows,      // rows of logits of a step
  kKvPages,        // pages of the pool
  kKvNnz,          // page ids of a step
  kRopePositions,  // rows of the rope table
  kShapeVarCount
};

constexpr const char* kShapeVarNames[kShapeVarCount] = {"seq_len", "logit_rows", "kv_pages",
                                                        "kv_nnz", "rope_positions"};

using ShapeValues = std::array<int64_t, kShapeVarCount>;

}  // namespace mlcb
