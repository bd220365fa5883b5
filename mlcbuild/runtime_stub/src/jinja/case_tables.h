// The generated tables of case_tables.cc: Unicode's upper and lower case.
#pragma once
#include <cstddef>
#include <cstdint>

namespace mlcb::jinja {

// first + i * stride, for i < count, becomes itself + delta.
struct CaseRange {
  uint32_t first;
  int32_t delta;
  uint16_t count;
  uint16_t stride;
};

// A character that becomes several, or another one in a title; 0: no further one.
struct CaseSpecial {
  uint16_t code;
  uint16_t to[3];
};

extern const CaseRange kLowerRanges[];
extern const size_t kLowerRangesSize;
extern const CaseRange kUpperRanges[];
extern const size_t kUpperRangesSize;
extern const CaseSpecial kUpperSpecials[];
extern const size_t kUpperSpecialsSize;
extern const CaseSpecial kTitleSpecials[];  // where it differs from upper case
extern const size_t kTitleSpecialsSize;

}  // namespace mlcb::jinja
