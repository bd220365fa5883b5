// Alternatives, as regular expressions and EBNF both write them.
#pragma once
#include <utility>

#include "grammar/expr.h"
#include "grammar/grammar_error.h"
#include "grammar/pattern_reader.h"

namespace mlcb {

// Sequences with '|' between them; sequence() reads one.
template <typename Sequence>
ExprPtr read_choice(PatternReader* in, int nesting, const Sequence& sequence) {
  if (nesting > kMaxGrammarNesting) in->fail("groups nest too deeply");
  ExprPtr first = sequence();
  if (!in->next_is('|')) return first;
  ExprPtr choice = make_expr(ExprKind::kChoice);
  choice->children.push_back(std::move(first));
  while (in->take('|')) choice->children.push_back(sequence());
  return choice;
}

}  // namespace mlcb
