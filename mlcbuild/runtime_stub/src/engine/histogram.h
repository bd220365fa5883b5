// Counts of durations by size, for quantiles and for Prometheus.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>

namespace mlcb {

// Bounds lie ten to a decade, from 0.1 ms to 1000 s, so a quantile is off by less than a quarter.
class Histogram {
 public:
  static constexpr size_t kBounds = 71;

  void add(double seconds, uint64_t times = 1);

  uint64_t count() const { return count_; }
  double sum() const { return sum_; }
  // The value below which `share` of all lie (0..1), interpolated; 0 if there are none.
  double quantile(double share) const;
  // How many are at most bound(index).
  uint64_t count_below(size_t index) const;
  static double bound(size_t index);  // seconds

 private:
  std::array<uint64_t, kBounds + 1> counts_{};  // the last one: beyond every bound
  uint64_t count_ = 0;
  double sum_ = 0, least_ = 0, greatest_ = 0;
};

}  // namespace mlcb
