// Grammars in the notation of GBNF: rules "name ::= ..." of literals, classes, groups and
// repetitions.
#include <map>
#include <string>

#include "core/utf8.h"
#include "grammar/compile.h"
#include "grammar/grammar_error.h"
#include "grammar/parse_choice.h"
#include "grammar/pattern_reader.h"

namespace mlcb {
namespace {

// Rules up to this size that cannot repeat are put in where they are named.
constexpr size_t kMaxInlined = 64;

class EbnfParser {
 public:
  EbnfParser(RuleSet* rules, std::string_view text, const std::string& where)
      : rules_(*rules), in_(text, where), where_(where) {}

  uint32_t parse() {
    skip_space();
    if (!in_.more()) in_.fail("there is no rule");
    uint32_t start = RuleSet::kNone;
    while (in_.more()) {
      const size_t at = in_.at();
      const std::string name = parse_name();
      skip_space();
      if (name.empty() || !take_definition()) in_.fail("expected a rule, \"name ::= ...\"");
      const uint32_t rule = rule_of(name, at);
      if (bodies_[rule]) {
        in_.go_back(at);
        in_.fail("rule " + name + " is defined twice");
      }
      bodies_[rule] = parse_choice(0);
      if (start == RuleSet::kNone || name == "root") start = rule;
    }
    for (const auto& entry : bodies_) {
      if (entry.second) continue;
      in_.go_back(first_use_[entry.first]);
      in_.fail("rule " + rules_.rules[entry.first].name + " is not defined");
    }
    for (const auto& entry : bodies_) {
      size_t size = 0;
      if (entry.first != start && is_small(*entry.second, 0, &size)) {
        rules_.inlined[entry.first] = entry.second.get();
      }
    }
    for (const auto& entry : bodies_) {
      if (rules_.inlined.count(entry.first) != 0) continue;
      const GrammarRule rule = rules_.rules[entry.first];
      rules_.add_expr(rule.start, *entry.second, TextEncoding::kUtf8, rule.finish);
    }
    rules_.inlined.clear();
    return start;
  }

 private:
  // Without repetitions that have no end, and small with everything that it names.
  bool is_small(const Expr& expr, int depth, size_t* size) const {
    *size += expr.kind == ExprKind::kLiteral ? expr.text.size() : 1;
    if (depth > 16 || *size > kMaxInlined) return false;
    if (expr.kind == ExprKind::kRepeat && (expr.max == kUnlimited || expr.max > 8)) return false;
    const int times = expr.kind == ExprKind::kRepeat ? static_cast<int>(expr.max) : 1;
    for (int i = 0; i < times; ++i) {
      for (const ExprPtr& child : expr.children) {
        if (!is_small(*child, depth + 1, size)) return false;
      }
    }
    if (expr.kind != ExprKind::kRule) return true;
    return is_small(*bodies_.at(expr.rule), depth + 1, size);
  }

  void skip_space() {
    for (; in_.more(); in_.skip(1)) {
      const uint32_t c = in_.peek();
      if (c == '#') {
        while (in_.more() && !in_.next_is('\n')) in_.skip(1);
        if (!in_.more()) return;
      } else if (c != ' ' && c != '\t' && c != '\n' && c != '\r') {
        return;
      }
    }
  }

  static bool is_name_char(uint32_t c) {
    return is_letter(c) || is_digit(c) || c == '_' || c == '-' || c == '.';
  }
  std::string parse_name() {
    std::string name;
    // A number cannot begin a name, nor a sign.
    if (!is_letter(in_.peek()) && !in_.next_is('_')) return name;
    while (is_name_char(in_.peek())) name.push_back(static_cast<char>(in_.get()));
    return name;
  }

  bool take_definition() {
    if (!in_.next_is(':') || !in_.next_is(':', 1) || !in_.next_is('=', 2)) return false;
    in_.skip(3);
    return true;
  }

  uint32_t rule_of(const std::string& name, size_t at) {
    const auto added = names_.emplace(name, 0);
    if (added.second) {
      added.first->second = rules_.add_rule(name);
      bodies_[added.first->second] = nullptr;
      first_use_[added.first->second] = at;
    }
    return added.first->second;
  }

  ExprPtr parse_choice(int nesting) {
    return read_choice(&in_, nesting, [&] { return parse_sequence(nesting); });
  }

  ExprPtr parse_sequence(int nesting) {
    ExprPtr sequence = make_expr(ExprKind::kSequence);
    for (;;) {
      skip_space();
      ExprPtr item = parse_atom(nesting);
      if (!item) break;
      skip_space();
      if (parse_repeat(&item)) {
        skip_space();
        if (in_.next_is('*') || in_.next_is('+') || in_.next_is('?')) {
          in_.fail("a repetition of a repetition needs a group");
        }
      }
      sequence->children.push_back(std::move(item));
    }
    if (sequence->children.size() == 1) return std::move(sequence->children[0]);
    return sequence;
  }

  // nullptr where the sequence ends.
  ExprPtr parse_atom(int nesting) {
    const uint32_t c = in_.peek();
    if (c == PatternReader::kNothing || c == '|') return nullptr;
    if (c == ')') {
      if (nesting == 0) in_.fail("a ')' too many");
      return nullptr;
    }
    if (c == '"') return parse_literal();
    if (c == '[') return parse_class();
    if (c == '.') {
      in_.skip(1);
      ExprPtr any = make_expr(ExprKind::kClass);
      any->set = CharSet::all();
      return any;
    }
    if (c == '(') {
      if (in_.next_is('=', 1) || in_.next_is('!', 1)) in_.fail("look-ahead is not supported");
      in_.skip(1);
      ExprPtr body = parse_choice(nesting + 1);
      if (!in_.take(')')) in_.fail("a ')' is missing");
      return body;
    }
    const size_t at = in_.at();
    const std::string name = parse_name();
    if (name.empty()) in_.fail("expected a literal, a class, a group or the name of a rule");
    const size_t behind = in_.at();
    skip_space();
    if (in_.next_is(':') && in_.next_is(':', 1)) {  // the next rule begins
      in_.go_back(at);
      return nullptr;
    }
    if (in_.next_is('(') && in_.at() == behind) in_.fail(name + "(...) is not supported");
    ExprPtr reference = make_expr(ExprKind::kRule);
    reference->rule = rule_of(name, at);
    return reference;
  }

  bool parse_repeat(ExprPtr* item) {
    uint32_t min = 0, max = 0;
    if (!in_.get_repeat(&min, &max)) {
      if (in_.next_is('{')) in_.fail("expected {m}, {m,} or {m,n}");
      return false;
    }
    *item = make_repeat(std::move(*item), min, max);
    return true;
  }

  uint32_t parse_char() {
    if (!in_.take('\\')) return in_.get();
    if (!in_.more()) in_.fail("a '\\' at the end");
    const uint32_t c = in_.get();
    uint32_t code = c;
    switch (c) {
      case 'n':
        return '\n';
      case 'r':
        return '\r';
      case 't':
        return '\t';
      case 'f':
        return '\f';
      case 'v':
        return '\v';
      case 'b':
        return '\b';
      case '0':
        return 0;
      case 'x':
        return in_.get_hex(2);
      case 'u':
        code = in_.get_hex(4);
        break;
      case 'U':
        code = in_.get_hex(8);
        break;
      default:
        if (is_letter(c) || is_digit(c)) in_.fail("this escape is not supported");
    }
    if (code > kLastChar || (code >= 0xD800 && code <= 0xDFFF)) in_.fail("no such character");
    return code;
  }

  ExprPtr parse_literal() {
    in_.skip(1);
    ExprPtr literal = make_expr(ExprKind::kLiteral);
    while (!in_.take('"')) {
      if (!in_.more()) in_.fail("a '\"' is missing");
      utf8_append(parse_char(), &literal->text);
    }
    return literal;
  }

  ExprPtr parse_class() {
    in_.skip(1);
    const bool negated = in_.take('^');
    CharSet set;
    while (!in_.take(']')) {
      if (!in_.more()) in_.fail("a ']' is missing");
      const uint32_t low = parse_char();
      uint32_t high = low;
      if (in_.next_is('-') && !in_.next_is(']', 1)) {
        in_.skip(1);
        if (!in_.more()) in_.fail("a ']' is missing");
        high = parse_char();
        if (high < low) in_.fail("a range with its ends in the wrong order");
      }
      set.add(low, high);
    }
    set.finish();
    ExprPtr expr = make_expr(ExprKind::kClass);
    expr->set = negated ? set.complement() : std::move(set);
    return expr;
  }

  RuleSet& rules_;
  PatternReader in_;
  std::string where_;
  std::map<std::string, uint32_t> names_;
  std::map<uint32_t, ExprPtr> bodies_;  // by rule
  std::map<uint32_t, size_t> first_use_;
};

}  // namespace

uint32_t add_ebnf(RuleSet* rules, std::string_view text, const std::string& where) {
  return EbnfParser(rules, text, where).parse();
}

}  // namespace mlcb
