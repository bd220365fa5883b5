// A row of logits, read in chunks with loops that compilers turn into vector code on any CPU.
#pragma once
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace mlcb {

constexpr float kNoLogit = -std::numeric_limits<float>::infinity();  // of a token that may not come
constexpr float kGreatestLogit = std::numeric_limits<float>::max();

// What sampling looks at: logits of ids below count, those that `allowed` leaves out counting as
// minus infinity (nullptr: all are allowed; else id i is bit i % 32 of word i / 32).
struct LogitRow {
  static constexpr size_t kChunk = 256;
  static constexpr size_t kLanes = 8;  // id i of a chunk belongs to its group i % kLanes

  const float* values = nullptr;
  size_t count = 0;
  const uint32_t* allowed = nullptr;

  size_t chunks() const { return (count + kChunk - 1) / kChunk; }
  bool allows(size_t id) const { return allowed == nullptr || (allowed[id / 32] >> id % 32 & 1); }
  // The kChunk logits of a chunk, in place or copied to buffer, minus infinity beyond the row;
  // nullptr if none of them is allowed.
  const float* chunk(size_t index, float* buffer) const;
  // The greatest logit of each group, kLanes a chunk, NaN passed over. Returns the greatest of all.
  float group_maxima(std::vector<float>* maxima) const;
};

// Weights are whole multiples of 2^-44, so that sums of them are exact and do not depend on the
// order of the terms: e^0 is 2^44, and 2^19 tokens fit 64 bits. Adding to 384 = 1.5 * 2^8 rounds a
// double to that grid. What is below e^-31.2 of the greatest has no weight.
constexpr uint64_t kWeightOne = uint64_t{1} << 44;

// e^((logit - greatest) * scale) for a chunk of logits that are at most greatest; 0 for NaN, minus
// infinity, and weights below `least` (0..1). It is the same on every CPU: plain float arithmetic
// in a fixed order, no library function, no fused operations (the build says -ffp-contract=off).
void weigh_chunk(const float* logits, float greatest, float scale, float least, uint64_t* weights);

}  // namespace mlcb
