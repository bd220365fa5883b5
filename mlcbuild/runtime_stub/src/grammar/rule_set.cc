#include "grammar/rule_set.h"

#include "core/utf8.h"
#include "grammar/grammar_error.h"

namespace mlcb {
namespace {

constexpr size_t kMaxStates = 400000;
constexpr size_t kMaxRules = 100000;
// Repetitions that would take more states than this are counted instead of written out.
constexpr size_t kMaxUnrolled = 256;

}  // namespace

uint32_t RuleSet::add_rule(std::string name) {
  if (rules.size() >= kMaxRules) {
    fail_grammar("the grammar is too large: more than " + std::to_string(kMaxRules) + " rules");
  }
  GrammarRule rule;
  rule.name = std::move(name);
  rule.start = add_state();
  rule.finish = add_state();
  rules.push_back(std::move(rule));
  return static_cast<uint32_t>(rules.size() - 1);
}

uint32_t RuleSet::add_counted(uint32_t item, uint32_t min, uint32_t max) {
  const uint32_t index = add_rule("repetition of " + rules[item].name);
  add_call(rules[index].start, item, rules[index].finish);
  rules[index].counted = true;
  rules[index].min = min;
  rules[index].max = max;
  return index;
}

uint32_t RuleSet::add_counted_class(const CharSet& set, TextEncoding encoding, uint32_t min,
                                    uint32_t max, int tail) {
  std::vector<uint32_t> key = {static_cast<uint32_t>(encoding), min, max,
                               static_cast<uint32_t>(tail)};
  for (const CharRange& range : set.ranges()) key.insert(key.end(), {range.first, range.last});
  bool added = false;
  const uint32_t id = class_keys_.add(key, &added);
  if (added) {
    const uint32_t index = add_rule("repetition of a class");
    add_class(rules[index].start, set, encoding, rules[index].finish);
    rules[index].counted = true;
    rules[index].min = min;
    rules[index].max = max;
    rules[index].tail = tail;
    counted_classes_.push_back(index);
  }
  return counted_classes_[id];
}

uint32_t RuleSet::add_state() {
  if (states.size() >= kMaxStates) {
    fail_grammar("the grammar is too large: more than " + std::to_string(kMaxStates) +
                 " states\nhint: make its repetitions or its alternatives fewer");
  }
  states.push_back(kNone);
  return static_cast<uint32_t>(states.size() - 1);
}

void RuleSet::add_edge(uint32_t from, RuleEdge::Kind kind, uint32_t value, uint32_t to) {
  if (edges.size() >= 4 * kMaxStates) {
    fail_grammar("the grammar is too large: more than " + std::to_string(4 * kMaxStates) +
                 " transitions");
  }
  RuleEdge edge;
  edge.to = to;
  edge.next = states[from];
  edge.value = value;
  edge.kind = kind;
  states[from] = static_cast<uint32_t>(edges.size());
  edges.push_back(edge);
}

void RuleSet::add_literal(uint32_t from, std::string_view text, uint32_t to) {
  if (text.empty()) return add_empty(from, to);
  for (size_t i = 0; i < text.size(); ++i) {
    const uint32_t next = i + 1 == text.size() ? to : add_state();
    const uint8_t byte = static_cast<uint8_t>(text[i]);
    add_bytes(from, byte, byte, next);
    from = next;
  }
}

uint32_t RuleSet::then_literal(uint32_t from, std::string_view text) {
  const uint32_t to = add_state();
  add_literal(from, text, to);
  return to;
}

uint32_t RuleSet::then_call(uint32_t from, uint32_t rule) {
  const uint32_t to = add_state();
  add_call(from, rule, to);
  return to;
}

void RuleSet::add_expr(uint32_t from, const Expr& expr, TextEncoding encoding, uint32_t to) {
  switch (expr.kind) {
    case ExprKind::kEmpty:
      add_empty(from, to);
      return;
    case ExprKind::kLiteral:
      if (encoding == TextEncoding::kUtf8) return add_literal(from, expr.text, to);
      for (const char *p = expr.text.data(), *end = p + expr.text.size(); p != end;) {
        const Utf8Char c = utf8_decode(p, end);
        p += c.size;
        const uint32_t next = p == end ? to : add_state();
        add_class(from, CharSet(c.code, c.code), encoding, next);
        from = next;
      }
      return;
    case ExprKind::kClass:
      add_class(from, expr.set, encoding, to);
      return;
    case ExprKind::kSequence:
      for (size_t i = 0; i < expr.children.size(); ++i) {
        const uint32_t next = i + 1 == expr.children.size() ? to : add_state();
        add_expr(from, *expr.children[i], encoding, next);
        from = next;
      }
      if (expr.children.empty()) add_empty(from, to);
      return;
    case ExprKind::kChoice:
      for (const ExprPtr& child : expr.children) {
        // States of its own, so that a loop of one alternative does not leak into another.
        const uint32_t first = add_state();
        add_empty(from, first);
        add_expr(first, *child, encoding, to);
      }
      return;
    case ExprKind::kRule: {
      const auto found = inlined.find(expr.rule);
      if (found == inlined.end()) {
        add_call(from, expr.rule, to);
      } else {
        add_expr(from, *found->second, encoding, to);
      }
      return;
    }
    case ExprKind::kTextBegin:
    case ExprKind::kTextEnd:
      fail_grammar("anchors (^, $) are supported at the ends of so large a pattern only");
    case ExprKind::kRepeat:
      break;
  }
  const Expr& item = *expr.children[0];
  if (expr.max == 0) return add_empty(from, to);
  const size_t times = expr.max == kUnlimited ? expr.min : expr.max;
  const size_t size = times <= 1 ? 1 : expanded_size(item, kMaxUnrolled);
  if (times > 1 && size * times > kMaxUnrolled) {
    if (item.kind == ExprKind::kClass) {
      add_call(from, add_counted_class(item.set, encoding, expr.min, expr.max), to);
      return;
    }
    const uint32_t rule = add_rule("group");
    add_expr(rules[rule].start, item, encoding, rules[rule].finish);
    add_call(from, add_counted(rule, expr.min, expr.max), to);
    return;
  }
  const bool unlimited = expr.max == kUnlimited;
  // Of an unlimited repetition, the last that must be there is the loop.
  const uint32_t copies = unlimited && expr.min > 0 ? expr.min - 1 : expr.min;
  for (uint32_t i = 0; i < copies; ++i) {
    const uint32_t next = add_state();
    add_expr(from, item, encoding, next);
    from = next;
  }
  if (unlimited) {
    const uint32_t loop = add_state(), back = add_state();
    add_empty(from, loop);
    add_expr(loop, item, encoding, back);
    add_empty(back, loop);
    add_empty(expr.min > 0 ? back : loop, to);
    return;
  }
  for (uint32_t i = expr.min; i < expr.max; ++i) {
    add_empty(from, to);
    const uint32_t next = add_state();
    add_expr(from, item, encoding, next);
    from = next;
  }
  add_empty(from, to);
}

void RuleSet::add_repeat(uint32_t from, uint32_t rule, uint32_t min, uint32_t max, uint32_t to) {
  Expr repeat, *item = nullptr;
  repeat.kind = ExprKind::kRepeat;
  repeat.min = min;
  repeat.max = max;
  repeat.children.push_back(make_expr(ExprKind::kRule));
  item = repeat.children[0].get();
  item->rule = rule;
  add_expr(from, repeat, TextEncoding::kUtf8, to);
}

}  // namespace mlcb
