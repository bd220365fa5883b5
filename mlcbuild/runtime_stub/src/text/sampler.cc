#include "text/sampler.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>

#include "core/error.h"

namespace mlcb {
namespace {

// The output function of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number
// generators, 2014).
uint64_t mix(uint64_t x) {
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
  x = (x ^ x >> 27) * 0x94D049BB133111EBu;
  return x ^ x >> 31;
}

// Number `index` of the stream `seed`, uniform in [0, 1). The seed is mixed first, or the streams
// of neighbouring seeds would be the same one, shifted.
double uniform(uint64_t seed, uint64_t index) {
  constexpr uint64_t kGolden = 0x9E3779B97F4A7C15u;
  const uint64_t bits = mix(mix(seed + kGolden) + (index + 1) * kGolden);
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

}  // namespace

int32_t Sampler::sample(const float* logits, size_t vocab_size, size_t valid_size) {
  const size_t count = std::min(vocab_size, valid_size);
  size_t best = count;
  for (size_t i = 0; i < count; ++i) {
    if (std::isfinite(logits[i]) && (best == count || logits[i] > logits[best])) best = i;
  }
  if (best == count) {
    throw Error(MLCB_ERROR_KERNEL, "no logit of " + std::to_string(count) +
                                       " is a finite number: the model's output is broken");
  }
  if (!(params_.temperature > 0)) return static_cast<int32_t>(best);

  order_.clear();
  for (size_t i = 0; i < count; ++i) {
    if (std::isfinite(logits[i])) order_.push_back(static_cast<int32_t>(i));
  }
  auto value = [&](int32_t id) { return logits[static_cast<size_t>(id)]; };
  const size_t top_k = static_cast<size_t>(std::max(params_.top_k, 0));
  if (top_k > 0 && top_k < order_.size()) {
    weights_.clear();
    for (const int32_t id : order_) weights_.push_back(value(id));
    const auto kth = weights_.begin() + static_cast<ptrdiff_t>(top_k - 1);
    std::nth_element(weights_.begin(), kth, weights_.end(), std::greater<float>());
    const float threshold = *kth;
    order_.erase(std::remove_if(order_.begin(), order_.end(),
                                [&](int32_t id) { return value(id) < threshold; }),
                 order_.end());
  }

  const float greatest = logits[best];
  auto weight = [&](int32_t id) { return std::exp((value(id) - greatest) / params_.temperature); };
  double total = 0;
  if (params_.top_p > 0 && params_.top_p < 1) {
    // Takes tokens from the top until they hold top_p of the probability. A heap, because those few
    // are all that must be in order.
    for (const int32_t id : order_) total += weight(id);
    const double wanted = total * params_.top_p;
    auto ranks_lower = [&](int32_t a, int32_t b) {
      return value(a) != value(b) ? value(a) < value(b) : a > b;
    };
    std::make_heap(order_.begin(), order_.end(), ranks_lower);
    weights_.clear();
    auto end = order_.end();
    total = 0;
    do {
      std::pop_heap(order_.begin(), end, ranks_lower);
      --end;
      weights_.push_back(weight(*end));
      total += weights_.back();
    } while (end != order_.begin() && total < wanted);
    order_.erase(order_.begin(), end);
    std::reverse(order_.begin(), order_.end());  // the heap leaves the greatest at the back
  } else {
    weights_.clear();
    for (const int32_t id : order_) {
      weights_.push_back(weight(id));
      total += weights_.back();
    }
  }

  double left = uniform(params_.seed, draws_++) * total;
  int32_t picked = static_cast<int32_t>(best);  // if rounding leaves a remainder at the end
  for (size_t i = 0; i < order_.size(); ++i) {
    if (weights_[i] <= 0) continue;
    picked = order_[i];
    left -= weights_[i];
    if (left < 0) break;
  }
  return picked;
}

}  // namespace mlcb
