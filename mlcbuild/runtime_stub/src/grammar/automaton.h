// A finished grammar: for every rule a small automaton whose transitions are bytes or other rules.
#pragma once
#include <cstdint>
#include <vector>

#include "grammar/rule_set.h"

namespace mlcb {

// Bytes that no transition tells apart are one class.
struct ByteTransition {
  uint32_t first, last;  // byte classes, inclusive
  uint32_t to;
};

struct CallTransition {
  uint32_t rule;
  uint32_t to;
};

struct AutomatonState {
  uint32_t bytes_begin = 0, bytes_end = 0;  // in Automaton::bytes
  uint32_t calls_begin = 0, calls_end = 0;
  uint32_t rule = 0;
  bool accepts = false;  // the rule may end here; a counted rule: if its count has been reached
  bool head = false;     // of a counted rule: between two of its items
  bool tail = false;     // of a counted rule: behind its items and its last byte
};

// No rule is called that has no text at all, or that calls itself before it takes a byte. A rule
// that may be empty is never called for that: its callers have a way past it.
struct AutomatonRule {
  uint32_t start = 0;
  uint32_t rank = 0;  // less than the rank of every rule that is called at the start
  bool counted = false;
  uint32_t min = 0, max = 0;
  bool has_tail = false;
  // A counted rule that calls none: where its states begin, and where those of the first rule with
  // the same ones begin (they may differ in min and max). Of each state, no two transitions share
  // a byte.
  bool flat = false;
  uint32_t base = 0, twin_base = 0;
};

struct Automaton {
  std::vector<AutomatonState> states;
  std::vector<ByteTransition> bytes;
  std::vector<CallTransition> calls;
  std::vector<AutomatonRule> rules;
  uint32_t root = 0;
  uint32_t class_count = 0;
  uint8_t class_of[256] = {};
  uint16_t class_size[256] = {};  // bytes in a class
  uint8_t class_first[256] = {};

  // Counts that make no difference any more become one.
  uint32_t next_count(const AutomatonRule& rule, uint32_t count) const {
    return rule.max == kUnlimited && count >= rule.min ? rule.min : count + 1;
  }
};

// Throws Error(MLCB_ERROR_GRAMMAR) if no text at all fits root, or if a limit is passed.
Automaton build_automaton(RuleSet* rules, uint32_t root);

// Rewrites rules that call themselves before they take a byte (directly or over others).
// nullable: a flag for each rule; rules that are added get one.
void remove_left_recursion(RuleSet* rules, const std::vector<char>& used,
                           std::vector<char>* nullable);

}  // namespace mlcb
