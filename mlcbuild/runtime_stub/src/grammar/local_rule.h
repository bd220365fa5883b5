// The automaton of one rule before it gets its place among the others.
#pragma once
#include <cstdint>
#include <vector>

#include "grammar/automaton.h"

namespace mlcb {

struct LocalState {
  std::vector<ByteTransition> bytes;
  std::vector<CallTransition> calls;
  bool accepts = false;
};

// Transitions lead to indices of states; the first one is the start.
struct LocalRule {
  std::vector<LocalState> states;
  uint32_t tail_state = RuleSet::kNone;  // see add_tail

  // A counted rule's finish is its start, one further.
  void close_loop();
  // The rule ends behind this byte instead of at its start.
  void add_tail(uint32_t byte_class);
  // Drops transitions to states from which the end cannot be reached.
  void trim();
  // Joins states with the same transitions, from the ends of the rule towards its start. A
  // transition to the state itself counts as equal to the other's to itself.
  void merge_equal();
  // States that can be reached, each behind those that it leads to (but for loops).
  void post_order(std::vector<uint32_t>* order) const;
};

}  // namespace mlcb
