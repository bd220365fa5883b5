// Regular expressions in the syntax of ECMAScript, as far as they are regular.
#include <algorithm>

#include "core/utf8.h"
#include "grammar/expr.h"
#include "grammar/grammar_error.h"
#include "grammar/parse_choice.h"
#include "grammar/pattern_reader.h"
#include "text/unicode.h"

namespace mlcb {
namespace {

struct PropertyName {
  const char* name;
  uint32_t categories;
};
constexpr PropertyName kProperties[] = {
    {"L", kCategoriesLetter},      {"Letter", kCategoriesLetter},
    {"M", kCategoriesMark},        {"Mark", kCategoriesMark},
    {"N", kCategoriesNumber},      {"Number", kCategoriesNumber},
    {"P", kCategoriesPunctuation}, {"Punctuation", kCategoriesPunctuation},
    {"S", kCategoriesSymbol},      {"Symbol", kCategoriesSymbol},
    {"Z", kCategoriesSeparator},   {"Separator", kCategoriesSeparator},
    {"C", kCategoriesOther},       {"Other", kCategoriesOther},
    {"Any", kCategoriesAll},
};
constexpr char kCategoryNames[] = "LuLlLtLmLoMnMcMeNdNlNoPcPdPsPePiPfPoSmScSkSoZsZlZpCcCfCsCoCn";

CharSet white_space() {
  CharSet set;
  const CharRange ranges[] = {
      {'\t', '\r'},     {' ', ' '},       {0xA0, 0xA0},     {0x1680, 0x1680}, {0x2000, 0x200A},
      {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
  for (const CharRange& range : ranges) set.add(range.first, range.last);
  return set;
}

class RegexParser {
 public:
  RegexParser(std::string_view pattern, const std::string& where) : in_(pattern, where) {}

  ExprPtr parse() {
    ExprPtr expr = parse_choice(0);
    if (in_.more()) in_.fail("a ')' too many");
    return expr;
  }

 private:
  ExprPtr parse_choice(int nesting) {
    return read_choice(&in_, nesting, [&] { return parse_sequence(nesting); });
  }

  ExprPtr parse_sequence(int nesting) {
    ExprPtr sequence = make_expr(ExprKind::kSequence);
    auto& children = sequence->children;
    while (in_.more() && !in_.next_is('|') && !in_.next_is(')')) {
      ExprPtr item = parse_atom(nesting);
      if (parse_repeat(&item) && (in_.next_is('*') || in_.next_is('+') || in_.next_is('?'))) {
        in_.fail("a repetition of a repetition needs a group");
      }
      // Characters next to one another become one literal.
      if (item->kind == ExprKind::kLiteral && !children.empty() &&
          children.back()->kind == ExprKind::kLiteral) {
        children.back()->text += item->text;
      } else {
        children.push_back(std::move(item));
      }
    }
    if (children.size() == 1) return std::move(children[0]);
    return sequence;
  }

  static ExprPtr class_expr(CharSet set) {
    set.finish();
    ExprPtr expr = make_expr(ExprKind::kClass);
    expr->set = std::move(set);
    return expr;
  }

  static ExprPtr char_expr(uint32_t code) {
    ExprPtr expr = make_expr(ExprKind::kLiteral);
    utf8_append(code, &expr->text);
    return expr;
  }

  ExprPtr parse_atom(int nesting) {
    const uint32_t c = in_.peek();
    switch (c) {
      case '(':
        return parse_group(nesting);
      case '[':
        return parse_class();
      case '.': {
        in_.skip(1);
        CharSet set;  // all but the line terminators
        set.add(0, 9);
        set.add(0xB, 0xC);
        set.add(0xE, 0x2027);
        set.add(0x202A, kLastChar);
        return class_expr(std::move(set));
      }
      case '^':
        in_.skip(1);
        return make_expr(ExprKind::kTextBegin);
      case '$':
        in_.skip(1);
        return make_expr(ExprKind::kTextEnd);
      case '*':
      case '+':
      case '?':
        in_.fail("nothing to repeat");
      case '\\':
        break;
      default:
        return char_expr(in_.get());
    }
    const uint32_t next = in_.peek(1);
    if (next == 'b' || next == 'B') in_.fail("word boundaries (\\b, \\B) are not supported");
    if ((is_digit(next) && next != '0') || next == 'k') {
      in_.fail("back references are not supported");
    }
    CharSet set;
    const uint32_t code = parse_escape(&set);
    return code == PatternReader::kNothing ? class_expr(std::move(set)) : char_expr(code);
  }

  ExprPtr parse_group(int nesting) {
    in_.skip(1);
    if (in_.next_is('?')) {
      const uint32_t kind = in_.peek(1), third = in_.peek(2);
      if (kind == ':') {
        in_.skip(2);
      } else if (kind == '=' || kind == '!' || (kind == '<' && (third == '=' || third == '!'))) {
        in_.fail("look-around is not supported");
      } else if (kind == '<' || (kind == 'P' && third == '<')) {
        in_.skip(kind == 'P' ? 3 : 2);
        while (is_letter(in_.peek()) || is_digit(in_.peek()) || in_.next_is('_')) in_.skip(1);
        if (!in_.take('>')) in_.fail("a '>' is missing behind the group's name");
      } else if (kind == '>') {
        in_.fail("atomic groups are not supported");
      } else {
        in_.fail("this kind of group, '(?', is not supported");
      }
    }
    ExprPtr body = parse_choice(nesting + 1);
    if (!in_.take(')')) in_.fail("a ')' is missing");
    // A group of its own, so that what follows is not joined to a literal in it.
    if (body->kind != ExprKind::kLiteral) return body;
    ExprPtr group = make_expr(ExprKind::kSequence);
    group->children.push_back(std::move(body));
    return group;
  }

  bool parse_repeat(ExprPtr* item) {
    uint32_t min = 0, max = 0;
    if (in_.next_is('{') && in_.next_is(',', 1) && is_digit(in_.peek(2))) {
      in_.fail("{,n} is no repetition in ECMAScript: write {0,n}");
    }
    if (!in_.get_repeat(&min, &max)) return false;
    if (in_.next_is('+')) in_.fail("possessive repetitions are not supported");
    in_.take('?');  // lazy or not: the same texts match
    *item = make_repeat(std::move(*item), min, max);
    return true;
  }

  // At a backslash: returns the character that it stands for, or adds a set to *set.
  uint32_t parse_escape(CharSet* set) {
    const size_t start = in_.at();
    in_.skip(1);
    if (!in_.more()) in_.fail("a '\\' at the end");
    const uint32_t c = in_.get();
    CharSet chars;
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
      case '0':
        if (!is_digit(in_.peek())) return 0;
        break;
      case 'x':
        return in_.get_hex(2);
      case 'u':
        return parse_unicode();
      case 'c':
        if (is_letter(in_.peek())) return in_.get() & 31;
        break;
      case 'd':
      case 'D':
        chars.add('0', '9');
        break;
      case 'w':
      case 'W':
        chars.add('0', '9');
        chars.add('A', 'Z');
        chars.add('_', '_');
        chars.add('a', 'z');
        break;
      case 's':
      case 'S':
        chars = white_space();
        break;
      case 'p':
      case 'P':
        chars = parse_property();
        break;
      default:
        if (!is_letter(c) && !is_digit(c)) return c;
    }
    if (chars.empty()) {
      in_.go_back(start);
      in_.fail("this escape is not supported");
    }
    chars.finish();
    set->add(c < 'a' ? chars.complement() : chars);
    return PatternReader::kNothing;
  }

  uint32_t parse_unicode() {
    if (in_.take('{')) {
      uint32_t code = 0;
      if (in_.next_is('}')) in_.fail("the escape needs hexadecimal digits");
      for (int digits = 0; !in_.next_is('}'); ++digits) {
        if (digits == 6) in_.fail("a character beyond U+10FFFF");
        code = code << 4 | in_.get_hex(1);
      }
      in_.skip(1);
      if (code > kLastChar) in_.fail("a character beyond U+10FFFF");
      return code;
    }
    const uint32_t code = in_.get_hex(4);
    if (code >= 0xD800 && code <= 0xDBFF && in_.next_is('\\') && in_.next_is('u', 1)) {
      in_.skip(2);
      const uint32_t low = in_.get_hex(4);
      if (low >= 0xDC00 && low <= 0xDFFF) return 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
    }
    if (code >= 0xD800 && code <= 0xDFFF) in_.fail("a lone surrogate");
    return code;
  }

  CharSet parse_property() {
    if (!in_.take('{')) in_.fail("\\p needs a name in braces");
    std::string name;
    while (in_.more() && !in_.next_is('}')) utf8_append(in_.get(), &name);
    if (!in_.take('}')) in_.fail("a '}' is missing");
    for (const PropertyName& property : kProperties) {
      if (name == property.name) return CharSet::categories(property.categories);
    }
    for (uint32_t i = 0; i <= kCn; ++i) {
      if (name == std::string_view(kCategoryNames + 2 * i, 2)) return CharSet::categories(1u << i);
    }
    in_.fail("the property \\p{" + name + "} is not supported (general categories are)");
  }

  ExprPtr parse_class() {
    in_.skip(1);
    const bool negated = in_.take('^');
    CharSet set;
    while (!in_.take(']')) {
      if (!in_.more()) in_.fail("a ']' is missing");
      if (in_.next_is('[') && in_.next_is(':', 1)) in_.fail("POSIX classes are not supported");
      const uint32_t low = parse_class_char(&set);
      if (low == PatternReader::kNothing) continue;
      uint32_t high = low;
      if (in_.next_is('-') && !in_.next_is(']', 1)) {
        in_.skip(1);
        if (!in_.more()) in_.fail("a ']' is missing");
        high = parse_class_char(&set);
        if (high == PatternReader::kNothing) in_.fail("a range that ends in a class");
        if (high < low) in_.fail("a range with its ends in the wrong order");
      }
      set.add(low, high);
    }
    set.finish();
    return class_expr(negated ? set.complement() : std::move(set));
  }

  uint32_t parse_class_char(CharSet* set) {
    if (!in_.next_is('\\')) return in_.get();
    if (in_.next_is('b', 1)) {
      in_.skip(2);
      return '\b';
    }
    return parse_escape(set);
  }

  PatternReader in_;
};

bool has_anchor(const Expr& expr) {
  if (expr.kind == ExprKind::kTextBegin || expr.kind == ExprKind::kTextEnd) return true;
  for (const ExprPtr& child : expr.children) {
    if (has_anchor(*child)) return true;
  }
  return false;
}

}  // namespace

ExprPtr parse_regex(std::string_view pattern, const std::string& where) {
  return RegexParser(pattern, where).parse();
}

bool strip_anchors(Expr* expr, bool* begin, bool* end) {
  *begin = *end = false;
  if (expr->kind == ExprKind::kTextBegin || expr->kind == ExprKind::kTextEnd) {
    *(expr->kind == ExprKind::kTextBegin ? begin : end) = true;
    expr->kind = ExprKind::kEmpty;
  } else if (expr->kind == ExprKind::kSequence) {
    auto& children = expr->children;
    if (!children.empty() && children.front()->kind == ExprKind::kTextBegin) {
      *begin = true;
      children.erase(children.begin());
    }
    if (!children.empty() && children.back()->kind == ExprKind::kTextEnd) {
      *end = true;
      children.pop_back();
    }
  }
  return !has_anchor(*expr);
}

size_t expanded_size(const Expr& expr, size_t limit) {
  size_t size = 1;
  if (expr.kind == ExprKind::kLiteral) size = expr.text.size();
  for (const ExprPtr& child : expr.children) {
    if (size >= limit) break;
    size += expanded_size(*child, limit - size);
  }
  if (expr.kind == ExprKind::kRepeat) {
    const size_t times = std::max<size_t>(1, expr.max == kUnlimited ? expr.min : expr.max);
    size = times > limit / std::max<size_t>(size, 1) ? limit : size * times;
  }
  return std::min(size, limit);
}

}  // namespace mlcb
