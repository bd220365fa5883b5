// Python's rules for values: truth, equality, order, text, subscripts, arithmetic.
#pragma once
#include <string>

#include "jinja/value.h"

namespace mlcb::jinja {

enum class Operator : uint8_t {
  kAdd,
  kSubtract,
  kMultiply,
  kDivide,
  kFloorDivide,
  kModulo,
  kPower,
  kEqual,
  kNotEqual,
  kLess,
  kLessEqual,
  kGreater,
  kGreaterEqual,
  kIn,
  kNotIn,
};

const char* type_name(const Value& value);  // "str", "dict", ...
bool truth(const Value& value);
bool equal(const Value& a, const Value& b, int depth = 0);
// Negative, zero or positive; fails for values that have no order.
int compare(const Value& a, const Value& b, Operator op, int depth = 0);
bool contains(Heap& heap, const Value& container, const Value& item);
// Of text in characters; fails for what has no length.
int64_t length(const Value& value);

// str(value): nothing for an undefined one. Appended to out.
void append_text(const Value& value, std::string* out);
std::string text_of(const Value& value);
// repr(value), appended to out.
void append_repr(const Value& value, std::string* out, int depth = 0);

// The sequence that iterating over a value gives; fails if it cannot be iterated over.
Value iterate(Heap& heap, const Value& value);
bool iterable(const Value& value);

// value[key] and nothing else: kMissing if there is no such item (Jinja then looks for an
// attribute). Fails for an undefined value.
Value find_item(Heap& heap, const Value& value, const Value& key);
// value[start:stop:step]; each may be None.
Value slice(Heap& heap, const Value& value, const Value& start, const Value& stop,
            const Value& step);

Value arithmetic(Heap& heap, Operator op, const Value& a, const Value& b);
Value negate(const Value& value);
void require_hashable(const Value& key);
[[noreturn]] void fail_undefined(const Value& value);
[[noreturn]] void fail_operands(Operator op, const Value& a, const Value& b);
[[noreturn]] void fail_big();
// Fails for values that are nested too deeply.
void check_depth(int depth);
// Steps for looking at a value's parts. One value may stand in many places of another, so that a
// small one can take forever.
void spend(const Object& object, size_t steps);
// Fails unless the value is an integer.
int64_t integer_of(const Value& value, const char* what);

}  // namespace mlcb::jinja
