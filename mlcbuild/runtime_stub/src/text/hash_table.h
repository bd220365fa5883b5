// What the open-addressed hash tables of the tokenizer share.
#pragma once
#include <cstddef>
#include <cstdint>

#include "core/error.h"

namespace mlcb {

// The size of a table for count entries: a power of two, less than two thirds full.
inline size_t hash_capacity(size_t count) {
  size_t capacity = 4;
  while (capacity * 2 < count * 3 + 2) capacity *= 2;
  return capacity;
}

// Tables are built from files. Entries that were chosen to collide would make every look-up slow:
// no real vocabulary comes near this many steps for one entry.
constexpr size_t kMaxProbes = 1000;

[[noreturn]] inline void fail_collisions() {
  throw Error(MLCB_ERROR_BUNDLE,
              "tokenizer: the vocabulary or its merges were made to collide in a hash table");
}

inline void prefetch(const void* address) { __builtin_prefetch(address); }
// How many entries ahead of the insertion their places are fetched.
constexpr size_t kPrefetchAhead = 16;

}  // namespace mlcb
