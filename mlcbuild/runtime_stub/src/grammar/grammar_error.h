// Errors of grammars, and limits that hold for all of their parts.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

#include "core/error.h"

namespace mlcb {

[[noreturn]] inline void fail_grammar(const std::string& message) {
  throw Error(MLCB_ERROR_GRAMMAR, message);
}

constexpr int kMaxGrammarNesting = 100;             // of groups, classes and the like
constexpr uint32_t kMaxGrammarRepeat = 1000000000;  // bounds of a repetition
constexpr size_t kMaxGrammarText = 4 << 20;         // bytes

}  // namespace mlcb
