#include "engine/histogram.h"

#include <algorithm>

namespace mlcb {
namespace {

// Renard's series R10. Bounds in microseconds are whole numbers, so that they print as what they
// are.
struct Bounds {
  double seconds[Histogram::kBounds] = {};
  constexpr Bounds() {
    constexpr uint64_t kDecade[10] = {100, 125, 160, 200, 250, 315, 400, 500, 630, 800};
    uint64_t power = 1;
    for (size_t i = 0; i < Histogram::kBounds; ++i) {
      if (i > 0 && i % 10 == 0) power *= 10;
      seconds[i] = static_cast<double>(kDecade[i % 10] * power) / 1e6;
    }
  }
};
constexpr Bounds kBoundTable;

}  // namespace

double Histogram::bound(size_t index) { return kBoundTable.seconds[index]; }

void Histogram::add(double seconds, uint64_t times) {
  if (times == 0) return;
  if (!(seconds > 0)) seconds = 0;             // a clock that stood still
  const double* bounds = kBoundTable.seconds;  // the first one that is not below it:
  const size_t index =
      static_cast<size_t>(std::lower_bound(bounds, bounds + kBounds, seconds) - bounds);
  counts_[index] += times;
  least_ = count_ == 0 ? seconds : std::min(least_, seconds);
  greatest_ = std::max(greatest_, seconds);
  count_ += times;
  sum_ += seconds * static_cast<double>(times);
}

double Histogram::quantile(double share) const {
  const double wanted = share * static_cast<double>(count_);
  double below = 0;
  for (size_t i = 0; i <= kBounds; ++i) {
    if (counts_[i] == 0) continue;
    const double here = static_cast<double>(counts_[i]);
    if (below + here >= wanted) {
      // What is known of this bucket's ends: its bounds, and the extremes of all that came.
      const double low = i == 0 ? least_ : std::max(bound(i - 1), least_);
      const double high = i == kBounds ? greatest_ : std::min(bound(i), greatest_);
      return low + (high - low) * ((wanted - below) / here);
    }
    below += here;
  }
  return greatest_;
}

uint64_t Histogram::count_below(size_t index) const {
  uint64_t count = 0;
  for (size_t i = 0; i <= index; ++i) count += counts_[i];
  return count;
}

}  // namespace mlcb
