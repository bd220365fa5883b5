// A parsed template.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "jinja/python.h"
#include "jinja/value.h"

namespace mlcb::jinja {

struct Filter;
struct Test;

enum class ExpressionKind : uint8_t {
  kConstant,
  kName,
  kTuple,
  kList,
  kDict,        // operands: key, value, key, value, ...
  kConcat,      // a ~ b ~ c
  kArithmetic,  // operands[0] operators[0] operands[1] operators[1] ..., from left to right
  kCompare,     // the same, as a chain of comparisons
  kAnd,
  kOr,
  kNot,
  kNegate,
  kPositive,
  kConditional,  // operands: test, then; and else if there are three
  kAttribute,    // operands[0].text
  kItem,         // operands[0][operands[1]]
  kSlice,        // operands[0][operands[1]:operands[2]:operands[3]]; each may be nullptr
  kCall,         // operands[0](the others, keywords, *star, **double_star)
  kFilter,       // operands[0]|text(...); operands[0] is nullptr for the filter of a block
  kTest,
};

struct Expression {
  ExpressionKind kind = ExpressionKind::kConstant;
  int32_t line = 0;
  int32_t depth = 1;  // of the tree below
  int32_t name = -1;  // kName
  Value constant;
  std::string text;
  std::vector<const Expression*> operands;
  std::vector<Operator> operators;
  std::vector<std::pair<std::string, const Expression*>> keywords;
  const Expression* star = nullptr;
  const Expression* double_star = nullptr;
  const Filter* filter = nullptr;  // nullptr: there is none of this name
  const Test* test = nullptr;
};

enum class TargetKind : uint8_t { kName, kTuple, kNamespace };

// What is assigned to.
struct Target {
  TargetKind kind = TargetKind::kName;
  int32_t line = 0;
  int32_t name = -1;
  std::string attribute;  // of a namespace
  std::vector<Target> items;
};

enum class StatementKind : uint8_t {
  kData,
  kPrint,
  kFor,
  kIf,  // bodies: one for each test, then the else's
  kSet,
  kSetBlock,
  kMacro,
  kCallBlock,
  kFilterBlock,
  kWith,
  kScope,  // a block of its own: {% generation %} renders as it stands
  kBreak,
  kContinue,
};

using Body = std::vector<Statement*>;

struct Statement {
  StatementKind kind = StatementKind::kData;
  int32_t line = 0;
  int32_t name = -1;  // kMacro; kFor: number of "loop"
  std::string text;   // kData; kMacro: its name
  const Expression* value =
      nullptr;  // kPrint, kSet, kFor (what is iterated over), kCallBlock, filters
  const Expression* test = nullptr;  // kFor
  bool recursive = false;
  std::vector<Target> targets;  // kFor, kSet: one; kWith; kMacro, kCallBlock: parameters
  std::vector<const Expression*>
      values;                // kWith; kIf: tests; parameters: defaults of the last ones
  std::vector<Body> bodies;  // kFor: [body, else]
  // For each body that is a scope: names that are undefined there until they are set.
  std::vector<std::vector<int32_t>> hidden;
  // Which of its special names a macro's body asks for.
  bool uses_varargs = false, uses_kwargs = false, uses_caller = false;
};

// A whole template; its constants are immortal.
struct Template {
  std::vector<std::unique_ptr<StringObject>> strings;  // first: the constants outlive what has them
  Body body;
  std::vector<int32_t> hidden;     // as of a statement
  std::vector<std::string> names;  // by number
  std::vector<std::unique_ptr<Expression>> expressions;
  std::vector<std::unique_ptr<Statement>> statements;
};

}  // namespace mlcb::jinja
