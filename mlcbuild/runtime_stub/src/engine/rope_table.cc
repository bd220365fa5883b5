#include "engine/rope_table.h"

#include <algorithm>
#include <cmath>

namespace mlcb {

RopeTable::RopeTable(const PlanRope& rope, int64_t positions) : rope_(rope), positions_(positions) {
  if (!rope.present) return;
  region_ = MemoryRegion(
      static_cast<uint64_t>(positions) * static_cast<uint64_t>(rope.rotary_dim) * sizeof(float),
      "the rope table");
}

// The angle is a float32 product, as in the reference implementations of these models; cos and sin
// are taken in double and rounded once, so that they do not depend on the C library.
void RopeTable::extend_to(int64_t end) {
  if (!rope_.present) return;
  end = std::min(end, positions_);
  const size_t half = rope_.inv_freq.size();
  for (; filled_ < end; ++filled_) {
    float* row = reinterpret_cast<float*>(region_.data()) + static_cast<size_t>(filled_) * 2 * half;
    for (size_t i = 0; i < half; ++i) {
      const float angle = static_cast<float>(filled_) * rope_.inv_freq[i];
      row[i] = static_cast<float>(std::cos(static_cast<double>(angle))) * rope_.attention_factor;
      row[half + i] =
          static_cast<float>(std::sin(static_cast<double>(angle))) * rope_.attention_factor;
    }
  }
}

}  // namespace mlcb
