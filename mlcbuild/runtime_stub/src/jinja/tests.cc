// The tests of "value is test".
#include <algorithm>

#include "jinja/builtins.h"
#include "jinja/interpreter.h"
#include "jinja/python.h"
#include "jinja/python_text.h"

namespace mlcb::jinja {
namespace {

using Arguments = const CallArguments&;

Value operand(const char* test, Arguments arguments) {
  return Parameters<1>(test, arguments, {""}, 1)[0];
}

template <int64_t rest>
bool parity(Interpreter& interpreter, const Value& value, Arguments arguments) {
  require_no_arguments("this test", arguments);
  return equal(arithmetic(interpreter.heap(), Operator::kModulo, value, Value::integer(2)),
               Value::integer(rest));
}

bool divisible_by(Interpreter& interpreter, const Value& value, Arguments arguments) {
  const Value number = Parameters<1>("divisibleby", arguments, {"num"}, 1)[0];
  return equal(arithmetic(interpreter.heap(), Operator::kModulo, value, number), Value::integer(0));
}

template <bool (*holds)(const Value&)>
bool of_value(Interpreter&, const Value& value, Arguments arguments) {
  require_no_arguments("this test", arguments);
  return holds(value);
}

bool is_defined(const Value& value) { return !value.is(Kind::kUndefined); }
bool is_undefined(const Value& value) { return value.is(Kind::kUndefined); }
bool is_none(const Value& value) { return value.is(Kind::kNone); }
bool is_boolean(const Value& value) { return value.is(Kind::kBool); }
bool is_false(const Value& value) { return value.is(Kind::kBool) && !value.as_bool(); }
bool is_true(const Value& value) { return value.is(Kind::kBool) && value.as_bool(); }
bool is_integer(const Value& value) { return value.is(Kind::kInt) || value.is(Kind::kBigInt); }
bool is_float(const Value& value) { return value.is(Kind::kFloat); }
bool is_number(const Value& value) { return value.is_number() || value.is(Kind::kBigInt); }
bool is_text(const Value& value) { return value.is_string(); }
bool is_mapping(const Value& value) { return value.is(Kind::kDict); }
bool is_lower_text(const Value& value) { return is_lower(text_of(value)); }
bool is_upper_text(const Value& value) { return is_upper(text_of(value)); }
bool is_escaped(const Value& value) { return value.is_string() && value.string().markup; }

bool is_sequence(const Value& value) {
  if (value.is(Kind::kSequence)) {
    const Flavor flavor = value.sequence().flavor;
    return flavor <= Flavor::kTuple || flavor == Flavor::kRange;
  }
  return value.is_string() || value.is(Kind::kDict) || value.is(Kind::kUndefined);
}

bool is_callable(const Value& value) {
  return value.is(Kind::kFunction) || value.is(Kind::kLoop) || value.is(Kind::kUndefined);
}

bool is_filter(const Value& value) {
  require_hashable(value);
  return value.is_string() && find_filter(value.text()) != nullptr;
}

bool is_test(const Value& value) {
  require_hashable(value);
  return value.is_string() && find_test(value.text()) != nullptr;
}

bool same_as(Interpreter&, const Value& value, Arguments arguments) {
  const Value other = Parameters<1>("sameas", arguments, {"other"}, 1)[0];
  if (value.kind() != other.kind()) return false;
  if (value.object() != nullptr) return value.object() == other.object();
  return equal(value, other);
}

bool is_in(Interpreter& interpreter, const Value& value, Arguments arguments) {
  const Value container = Parameters<1>("in", arguments, {"seq"}, 1)[0];
  return contains(interpreter.heap(), container, value);
}

template <bool wanted>
bool equals(Interpreter&, const Value& value, Arguments arguments) {
  return equal(value, operand("eq", arguments)) == wanted;
}

template <Operator op>
bool ordered(Interpreter&, const Value& value, Arguments arguments) {
  const int order = compare(value, operand("a comparison", arguments), op);
  switch (op) {
    case Operator::kLess:
      return order < 0;
    case Operator::kLessEqual:
      return order <= 0;
    case Operator::kGreater:
      return order > 0;
    default:
      return order >= 0;
  }
}

const Test kTests[] = {
    {"!=", equals<false>},
    {"<", ordered<Operator::kLess>},
    {"<=", ordered<Operator::kLessEqual>},
    {"==", equals<true>},
    {">", ordered<Operator::kGreater>},
    {">=", ordered<Operator::kGreaterEqual>},
    {"boolean", of_value<is_boolean>},
    {"callable", of_value<is_callable>},
    {"defined", of_value<is_defined>},
    {"divisibleby", divisible_by},
    {"eq", equals<true>},
    {"equalto", equals<true>},
    {"escaped", of_value<is_escaped>},
    {"even", parity<0>},
    {"false", of_value<is_false>},
    {"filter", of_value<is_filter>},
    {"float", of_value<is_float>},
    {"ge", ordered<Operator::kGreaterEqual>},
    {"greaterthan", ordered<Operator::kGreater>},
    {"gt", ordered<Operator::kGreater>},
    {"in", is_in},
    {"integer", of_value<is_integer>},
    {"iterable", of_value<iterable>},
    {"le", ordered<Operator::kLessEqual>},
    {"lessthan", ordered<Operator::kLess>},
    {"lower", of_value<is_lower_text>},
    {"lt", ordered<Operator::kLess>},
    {"mapping", of_value<is_mapping>},
    {"ne", equals<false>},
    {"none", of_value<is_none>},
    {"number", of_value<is_number>},
    {"odd", parity<1>},
    {"sameas", same_as},
    {"sequence", of_value<is_sequence>},
    {"string", of_value<is_text>},
    {"test", of_value<is_test>},
    {"true", of_value<is_true>},
    {"undefined", of_value<is_undefined>},
    {"upper", of_value<is_upper_text>},
};

}  // namespace

const Test* find_test(std::string_view name) {
  const auto found = std::lower_bound(
      std::begin(kTests), std::end(kTests), name,
      [](const Test& test, std::string_view wanted) { return test.name < wanted; });
  return found != std::end(kTests) && found->name == name ? &*found : nullptr;
}

}  // namespace mlcb::jinja
