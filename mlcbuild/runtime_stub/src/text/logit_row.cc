#include "text/logit_row.h"

#include <algorithm>
#include <cstring>

namespace mlcb {
namespace {

// Bit j of a word, for lane j: a table, since shifts by a different number in each lane are rare
// among CPUs.
struct LaneBits {
  uint32_t bit[32];
  constexpr LaneBits() : bit() {
    for (int i = 0; i < 32; ++i) bit[i] = uint32_t{1} << i;
  }
};
constexpr LaneBits kLaneBits;

template <typename To, typename From>
To bits_of(From value) {
  static_assert(sizeof(To) == sizeof(From), "a cast of bits keeps their number");
  To bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

void mask_word(const float* values, uint32_t word, float* out) {
  for (size_t i = 0; i < 32; ++i) {
    const float value = values[i];  // read in any case: a branch for each lane would be slow
    out[i] = (word & kLaneBits.bit[i]) != 0 ? value : kNoLogit;
  }
}

}  // namespace

const float* LogitRow::chunk(size_t index, float* buffer) const {
  constexpr size_t kWords = kChunk / 32;
  const size_t begin = index * kChunk;
  const float* from = values + begin;
  if (count - begin < kChunk) {  // the last one
    for (size_t i = 0; i < kChunk; ++i) {
      buffer[i] = begin + i < count && allows(begin + i) ? from[i] : kNoLogit;
    }
    return buffer;
  }
  if (allowed == nullptr) return from;
  const uint32_t* words = allowed + begin / 32;
  uint32_t any = 0, all = ~uint32_t{0};
  for (size_t i = 0; i < kWords; ++i) {
    any |= words[i];
    all &= words[i];
  }
  if (any == 0) return nullptr;
  if (all == ~uint32_t{0}) return from;
  for (size_t i = 0; i < kWords; ++i) mask_word(from + i * 32, words[i], buffer + i * 32);
  return buffer;
}

float LogitRow::group_maxima(std::vector<float>* maxima) const {
  constexpr size_t kWide = 2 * kLanes;  // more lanes than groups: maxima need not wait for another
  maxima->resize(chunks() * kLanes);
  float greatest[kLanes];
  std::fill(greatest, greatest + kLanes, kNoLogit);
  float buffer[kChunk];
  for (size_t c = 0; c < chunks(); ++c) {
    float* out = maxima->data() + c * kLanes;
    const float* logits = chunk(c, buffer);
    if (logits == nullptr) {
      std::fill(out, out + kLanes, kNoLogit);
      continue;
    }
    float wide[kWide];
    std::fill(wide, wide + kWide, kNoLogit);
    for (size_t i = 0; i < kChunk; i += kWide) {
      for (size_t j = 0; j < kWide; ++j) {
        wide[j] = logits[i + j] > wide[j] ? logits[i + j] : wide[j];
      }
    }
    for (size_t j = 0; j < kLanes; ++j) {
      out[j] = wide[j] > wide[j + kLanes] ? wide[j] : wide[j + kLanes];
      greatest[j] = out[j] > greatest[j] ? out[j] : greatest[j];
    }
  }
  return *std::max_element(greatest, greatest + kLanes);
}

void weigh_chunk(const float* logits, float greatest, float scale, float least, uint64_t* weights) {
  constexpr float kLog2E = 1.44269504f;
  constexpr float kRound = 12582912;        // 1.5 * 2^23: adding it rounds to a whole number
  constexpr float kLn2High = 0.693359375f;  // a few bits, so that multiples of it are exact
  constexpr float kLn2Low = -2.12194440e-4f;
  constexpr float kLowest = -32;
  constexpr double kGrid = 384;
  const uint32_t round_bits = bits_of<uint32_t>(kRound);
  const uint64_t grid_bits = bits_of<uint64_t>(kGrid);
  float exponentials[LogitRow::kChunk];
  for (size_t i = 0; i < LogitRow::kChunk; ++i) {
    const float given = (logits[i] - greatest) * scale;
    const float x = given > kLowest ? given : kLowest;  // NaN too
    // x = n ln 2 + r with |r| <= ln 2 / 2, and e^r from a polynomial fitted there: its relative
    // error is below 1.1e-7, and e^0 is 1.
    const float rounded = x * kLog2E + kRound;
    const float n = rounded - kRound;
    const float r = (x - n * kLn2High) - n * kLn2Low;
    float p = 0.0013926184f;
    p = p * r + 0.008363179f;
    p = p * r + 0.041666556f;
    p = p * r + 0.16666576f;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    const uint32_t power = (bits_of<uint32_t>(rounded) - round_bits + 127) << 23;  // of 2^n
    const float e = p * bits_of<float>(power);
    exponentials[i] = given > kLowest && e >= least ? e : 0.0f;
  }
  for (size_t i = 0; i < LogitRow::kChunk; ++i) {
    weights[i] = bits_of<uint64_t>(static_cast<double>(exponentials[i]) + kGrid) - grid_bits;
  }
}

}  // namespace mlcb
