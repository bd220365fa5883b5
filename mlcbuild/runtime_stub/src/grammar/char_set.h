// Sets of Unicode characters as sorted ranges.
#pragma once
#include <cstdint>
#include <vector>

namespace mlcb {

struct CharRange {
  uint32_t first, last;  // inclusive
  bool operator<(const CharRange& other) const { return first < other.first; }
};

constexpr uint32_t kLastChar = 0x10FFFF;

// Surrogates are no characters: they may lie inside a range, but never count.
class CharSet {
 public:
  CharSet() = default;
  CharSet(uint32_t first, uint32_t last) : ranges_{{first, last}} {}
  static CharSet all() { return CharSet(0, kLastChar); }
  // All characters of these general categories (bits of unicode.h).
  static CharSet categories(uint32_t bits);

  void add(uint32_t first, uint32_t last) { ranges_.push_back({first, last}); }
  void add(const CharSet& other);
  // Sorts the ranges and joins those that touch; the functions below want it done.
  void finish();
  CharSet complement() const;
  CharSet intersect(const CharSet& other) const;

  bool empty() const { return ranges_.empty(); }
  const std::vector<CharRange>& ranges() const { return ranges_; }

 private:
  std::vector<CharRange> ranges_;
};

}  // namespace mlcb
