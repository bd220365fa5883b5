// cos and sin of every position's angles, computed when a position is first used.
#pragma once
#include <cstdint>

#include "core/os.h"
#include "exec/executor.h"
#include "exec/plan.h"

namespace mlcb {

class RopeTable {
 public:
  // A table for positions 0..positions-1; empty if the plan has no rope.
  RopeTable(const PlanRope& rope, int64_t positions);

  // Fills the rows of positions below `end`.
  void extend_to(int64_t end);
  Span span() const { return {region_.data(), region_.size()}; }

 private:
  PlanRope rope_;
  MemoryRegion region_;
  int64_t positions_;
  int64_t filled_ = 0;
};

}  // namespace mlcb
