#include "engine/histogram.h"

#include <algorithm>
#include <cmath>

namespace mlcb {
namespace {

// Renard's series R10. Bounds in 1e-6 s are whole numbers up to the rounding of the division, so
// that they print as what they are.
constexpr uint32_t kDecade[10] = {100, 125, 160, 200, 250, 315, 400, 500, 630, 800};

}  // namespace

double Histogram::bound(size_t index) {
  uint64_t microseconds = kDecade[index % 10];
  for (size_t decade = 0; decade < index / 10; ++decade) microseconds *= 10;
  return static_cast<double>(microseconds) / 1e6;
}

void Histogram::add(double seconds, uint64_t times) {
  if (times == 0) return;
  if (!(seconds > 0)) seconds = 0;  // a clock that stood still
  size_t low = 0, high = kBounds;   // the first bound that is not below it
  while (low < high) {
    const size_t middle = (low + high) / 2;
    if (bound(middle) < seconds) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  counts_[low] += times;
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
