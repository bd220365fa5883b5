// The generated tables of unicode_tables.cc; unicode.h has the functions over them.
#pragma once
#include <cstddef>
#include <cstdint>

namespace mlcb {

struct CodeRange {
  uint32_t first, last;  // inclusive
};

// first + i * stride, for i < count, folds to itself + delta.
struct FoldRange {
  uint32_t first;
  int32_t delta;
  uint16_t count;
  uint16_t stride;
};

struct CombiningRange {
  uint32_t first;
  uint16_t count;
  uint8_t combining_class;
};

struct Decomposition {
  uint32_t code;
  uint32_t first, second;  // second is 0 for a singleton
};

extern const char kUnicodeVersion[];
// First code << 5 | category for each run of equal categories, ascending.
extern const uint32_t kCategories[];
extern const size_t kCategoriesSize;
extern const FoldRange kFolds[];
extern const size_t kFoldsSize;
extern const CombiningRange kCombining[];
extern const size_t kCombiningSize;
// Characters that NFC may change, reorder or join to what stands before them.
extern const CodeRange kNfcUnsafe[];
extern const size_t kNfcUnsafeSize;
// Canonical decompositions (one step, without Hangul), ascending by code.
extern const Decomposition kDecompositions[];
extern const size_t kDecompositionsSize;
// Indices into kDecompositions of the primary composites, ascending by (first, second).
extern const uint16_t kCompositions[];
extern const size_t kCompositionsSize;

}  // namespace mlcb
