// What regular expressions and EBNF rules are read into.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "grammar/char_set.h"

namespace mlcb {

constexpr uint32_t kUnlimited = UINT32_MAX;

enum class ExprKind : uint8_t {
  kEmpty,
  kLiteral,   // text
  kClass,     // one character of set
  kSequence,  // all children
  kChoice,    // one of the children
  kRepeat,    // the child, min to max times
  kRule,      // rule
  kTextBegin,
  kTextEnd
};

struct Expr {
  ExprKind kind = ExprKind::kEmpty;
  uint32_t min = 0, max = 0;
  uint32_t rule = 0;
  std::string text;  // UTF-8
  CharSet set;       // finished
  std::vector<std::unique_ptr<Expr>> children;
};
using ExprPtr = std::unique_ptr<Expr>;

inline ExprPtr make_expr(ExprKind kind) {
  ExprPtr expr = std::make_unique<Expr>();
  expr->kind = kind;
  return expr;
}
inline ExprPtr make_repeat(ExprPtr item, uint32_t min, uint32_t max) {
  ExprPtr repeat = make_expr(ExprKind::kRepeat);
  repeat->min = min;
  repeat->max = max;
  repeat->children.push_back(std::move(item));
  return repeat;
}

// Number of nodes with repetitions written out and literals counted by their bytes; at most limit.
size_t expanded_size(const Expr& expr, size_t limit);

// The regular expression's tree. where: for messages. Throws Error(MLCB_ERROR_GRAMMAR) that names
// what is not supported. docs/structured-output.md tells the syntax.
ExprPtr parse_regex(std::string_view pattern, const std::string& where);

// Takes a leading ^ and a trailing $ off, and tells which there were; true if no other anchor is
// left in the tree.
bool strip_anchors(Expr* expr, bool* begin, bool* end);

}  // namespace mlcb
