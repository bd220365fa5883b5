#include "grammar/char_set.h"

#include <algorithm>

#include "text/unicode_tables.h"

namespace mlcb {

CharSet CharSet::categories(uint32_t bits) {
  CharSet set;
  for (size_t i = 0; i < kCategoriesSize; ++i) {
    const uint32_t first = kCategories[i] >> 5;
    const uint32_t last = i + 1 < kCategoriesSize ? (kCategories[i + 1] >> 5) - 1 : kLastChar;
    if (bits >> (kCategories[i] & 31) & 1) set.add(first, last);
  }
  set.finish();
  return set;
}

void CharSet::add(const CharSet& other) {
  ranges_.insert(ranges_.end(), other.ranges_.begin(), other.ranges_.end());
}

void CharSet::finish() {
  std::sort(ranges_.begin(), ranges_.end());
  size_t kept = 0;
  for (const CharRange& range : ranges_) {
    if (kept > 0 && range.first <= ranges_[kept - 1].last + 1) {
      ranges_[kept - 1].last = std::max(ranges_[kept - 1].last, range.last);
    } else {
      ranges_[kept++] = range;
    }
  }
  ranges_.resize(kept);
}

CharSet CharSet::complement() const {
  CharSet set;
  uint32_t next = 0;
  for (const CharRange& range : ranges_) {
    if (range.first > next) set.add(next, range.first - 1);
    next = range.last + 1;
  }
  if (next <= kLastChar) set.add(next, kLastChar);
  return set;
}

CharSet CharSet::intersect(const CharSet& other) const {
  CharSet set;
  size_t i = 0, j = 0;
  while (i < ranges_.size() && j < other.ranges_.size()) {
    const uint32_t first = std::max(ranges_[i].first, other.ranges_[j].first);
    const uint32_t last = std::min(ranges_[i].last, other.ranges_[j].last);
    if (first <= last) set.add(first, last);
    if (ranges_[i].last < other.ranges_[j].last) {
      ++i;
    } else {
      ++j;
    }
  }
  return set;
}

}  // namespace mlcb
