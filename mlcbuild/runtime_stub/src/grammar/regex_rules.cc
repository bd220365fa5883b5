#include "grammar/char_dfa.h"
#include "grammar/compile.h"

namespace mlcb {

uint32_t add_regex(RuleSet* rules, std::string_view pattern, const std::string& where) {
  const ExprPtr expr = parse_regex(pattern, where);
  const uint32_t rule = rules->add_rule("regular expression");
  const uint32_t start = rules->rules[rule].start, finish = rules->rules[rule].finish;
  CharDfa dfa;
  if (CharDfa::from_expr(*expr, false, &dfa)) {
    dfa.add_to(rules, start, TextEncoding::kUtf8, finish);
    return rule;
  }
  // Too large when everything is written out: count repetitions, follow choices side by side.
  bool begin = false, end = false;
  strip_anchors(expr.get(), &begin, &end);
  rules->add_expr(start, *expr, TextEncoding::kUtf8, finish);
  return rule;
}

}  // namespace mlcb
