// The generated tables of unicode_tables.cc; unicode.h has the functions over them.
#pragma once
#include <cstddef>
#include <cstdint>

namespace mlcb {

struct CodeRange {
  uint32_t first, last;  // inclusive
};

// first + i * stride, for i < count, becomes itself + delta.
struct ShiftRange {
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

// code becomes kCompatibleUnits[offset], and size - 1 that follow.
struct CompatibleSequence {
  uint32_t code;
  uint16_t offset, size;
};

struct Decomposition {
  uint32_t code;
  uint32_t first, second;  // second is 0 for a singleton
};

extern const char kUnicodeVersion[];
// First code << 5 | category for each run of equal categories, ascending.
extern const uint32_t kCategories[];
extern const size_t kCategoriesSize;
extern const ShiftRange kFolds[];  // simple case folding
extern const size_t kFoldsSize;
extern const ShiftRange kLowers[];  // small letters, without U+0130, which becomes two
extern const size_t kLowersSize;
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
// Full compatibility decompositions, where they are not the canonical ones: into one character,
// and into several.
extern const ShiftRange kCompatibleChars[];
extern const size_t kCompatibleCharsSize;
extern const CompatibleSequence kCompatibleSequences[];
extern const size_t kCompatibleSequencesSize;
extern const uint16_t kCompatibleUnits[];
extern const size_t kCompatibleUnitsSize;
// Where the normalizer StripAccents and the pre-tokenizer Punctuation (beyond ASCII) differ from
// the categories M and P.
extern const CodeRange kMarkExceptions[];
extern const size_t kMarkExceptionsSize;
extern const CodeRange kPunctuationExceptions[];
extern const size_t kPunctuationExceptionsSize;

}  // namespace mlcb
