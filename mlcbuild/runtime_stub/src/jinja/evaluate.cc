// Expressions.
#include <algorithm>

#include "jinja/frames.h"
#include "jinja/interpreter.h"
#include "jinja/python.h"

namespace mlcb::jinja {

// ---- attributes and items ---------------------------------------------------------------------

Value Interpreter::loop_attribute(const Value& value, std::string_view name) {
  const LoopObject& loop = value.loop();
  const std::vector<Value>& items = loop.items.sequence().items;
  const int64_t size = static_cast<int64_t>(items.size());
  if (name == "index0") return Value::integer(loop.index0);
  if (name == "index") return Value::integer(loop.index0 + 1);
  if (name == "first") return Value::boolean(loop.index0 == 0);
  if (name == "last") return Value::boolean(loop.index0 + 1 == size);
  if (name == "length") return Value::integer(size);
  if (name == "revindex") return Value::integer(size - loop.index0);
  if (name == "revindex0") return Value::integer(size - loop.index0 - 1);
  if (name == "depth") return Value::integer(loop.depth0 + 1);
  if (name == "depth0") return Value::integer(loop.depth0);
  if (name == "previtem") {
    if (loop.index0 == 0) return heap_->undefined("there is no previous item");
    return items[static_cast<size_t>(loop.index0 - 1)];
  }
  if (name == "nextitem") {
    if (loop.index0 + 1 == size) return heap_->undefined("there is no next item");
    return items[static_cast<size_t>(loop.index0 + 1)];
  }
  if (name == "cycle" || name == "changed") {
    FunctionObject* function =
        heap_->function(name == "cycle" ? FunctionKind::kLoopCycle : FunctionKind::kLoopChanged);
    function->self = value;
    return Value::object(Kind::kFunction, function);
  }
  return Value();
}

// An attribute that the object's type has; kMissing if there is none.
Value Interpreter::find_attribute(const Value& object, std::string_view name) {
  switch (object.kind()) {
    case Kind::kUndefined:
      fail_undefined(object);
    case Kind::kNamespace:
      for (const auto& [known, value] : object.name_space().items) {
        if (known == name) return value;
      }
      return Value();
    case Kind::kLoop:
      return loop_attribute(object, name);
    case Kind::kFunction: {
      const FunctionObject& function = object.function();
      if (function.function_kind == FunctionKind::kMacro && name == "name") {
        return heap_->string(function.macro->text);
      }
      fail("attributes of functions are not supported");
    }
    default:
      break;
  }
  bool unsafe = false;
  const Method* method = find_method(object, name, &unsafe);
  if (unsafe) {
    return heap_->undefined("'" + std::string(name) + "' would change a " + type_name(object) +
                            ": a template may not");
  }
  if (method == nullptr) return Value();
  FunctionObject* function = heap_->function(FunctionKind::kMethod);
  Value result = Value::object(Kind::kFunction, function);
  function->method = method;
  function->self = object;
  return result;
}

namespace {

std::string no_such(const Value& object, const Value& key) {
  std::string what;
  append_repr(key, &what);
  return std::string(type_name(object)) + " has no " + what;
}

}  // namespace

Value Interpreter::attribute(const Value& object, const std::string& name) {
  Value found = find_attribute(object, name);
  if (found.given()) return found;
  if (object.is(Kind::kDict)) {
    heap_->work(object.dict().items.size() / 8);
    if (const Value* item = object.dict().find(std::string_view(name))) return *item;
  }
  return heap_->undefined(std::string(type_name(object)) + " has no '" + name + "'");
}

Value Interpreter::item(const Value& object, const Value& key) {
  Value found = find_item(*heap_, object, key);
  if (found.given()) return found;
  if (key.is_string()) {
    found = find_attribute(object, key.text());
    if (found.given()) return found;
  }
  return heap_->undefined(no_such(object, key));
}

Value Interpreter::filter(const std::string& name, const Value& value,
                          const CallArguments& arguments) {
  const Filter* found = find_filter(name);
  if (found == nullptr) fail("there is no filter '" + name + "'");
  return found->run(*this, value, arguments);
}

bool Interpreter::test(const std::string& name, const Value& value,
                       const CallArguments& arguments) {
  const Test* found = find_test(name);
  if (found == nullptr) fail("there is no test '" + name + "'");
  return found->run(*this, value, arguments);
}

// ---- expressions ------------------------------------------------------------------------------

Value Interpreter::evaluate(const Expression& expression) {
  const Level level(this);
  switch (expression.kind) {
    case ExpressionKind::kConstant:
      return expression.constant;
    case ExpressionKind::kName:
      return evaluate_name(expression);
    case ExpressionKind::kTuple:
    case ExpressionKind::kList:
      return evaluate_list(expression);
    case ExpressionKind::kDict:
      return evaluate_dict(expression);
    case ExpressionKind::kConcat:
      return evaluate_concat(expression);
    case ExpressionKind::kArithmetic:
      return evaluate_arithmetic(expression);
    case ExpressionKind::kCompare:
      return evaluate_compare(expression);
    case ExpressionKind::kAnd:
    case ExpressionKind::kOr:
    case ExpressionKind::kNot:
    case ExpressionKind::kNegate:
    case ExpressionKind::kPositive:
      return evaluate_logic(expression);
    case ExpressionKind::kConditional:
      return evaluate_conditional(expression);
    case ExpressionKind::kAttribute:
    case ExpressionKind::kItem:
      return evaluate_access(expression);
    case ExpressionKind::kSlice:
      return evaluate_slice(expression);
    case ExpressionKind::kCall:
      return evaluate_call(expression, nullptr);
    case ExpressionKind::kFilter:
      return evaluate_filter(expression, nullptr);
    case ExpressionKind::kTest:
      return evaluate_test(expression);
  }
  return Value();
}

Value Interpreter::evaluate_name(const Expression& expression) {
  if (const Value* found = find_variable(expression.name)) return *found;
  const std::string& name = program_.names[static_cast<size_t>(expression.name)];
  line_ = expression.line;
  for (const char* known : {"lipsum", "cycler", "joiner"}) {
    if (name == known) fail("'" + name + "' is not supported");
  }
  return heap_->undefined("'" + name + "' is undefined");
}

Value Interpreter::evaluate_list(const Expression& expression) {
  std::vector<Value> items;
  items.reserve(expression.operands.size());
  for (const Expression* operand : expression.operands) items.push_back(evaluate(*operand));
  return heap_->list(std::move(items),
                     expression.kind == ExpressionKind::kTuple ? Flavor::kTuple : Flavor::kList);
}

Value Interpreter::evaluate_dict(const Expression& expression) {
  std::vector<std::pair<Value, Value>> items;
  for (size_t i = 0; i + 1 < expression.operands.size(); i += 2) {
    Value key = evaluate(*expression.operands[i]);
    Value value = evaluate(*expression.operands[i + 1]);
    line_ = expression.line;
    require_hashable(key);
    const auto known = std::find_if(items.begin(), items.end(),
                                    [&](const auto& item) { return equal(item.first, key); });
    if (known != items.end()) {
      known->second = std::move(value);
    } else {
      items.emplace_back(std::move(key), std::move(value));
    }
  }
  return heap_->dict(std::move(items));
}

Value Interpreter::evaluate_concat(const Expression& expression) {
  std::string text;
  for (const Expression* operand : expression.operands) {
    const Value value = evaluate(*operand);
    line_ = expression.line;
    if (value.is_string()) heap_->expect(text.size() + value.text().size());
    append_text(value, &text);
  }
  heap_->work(text.size() / 64);
  return heap_->string(std::move(text));
}

Value Interpreter::evaluate_arithmetic(const Expression& expression) {
  Value left = evaluate(*expression.operands[0]);
  for (size_t i = 1; i < expression.operands.size(); ++i) {
    const Value right = evaluate(*expression.operands[i]);
    line_ = expression.line;
    left = arithmetic(*heap_, expression.operators[i - 1], left, right);
  }
  return left;
}

Value Interpreter::evaluate_compare(const Expression& expression) {
  Value left = evaluate(*expression.operands[0]);
  for (size_t i = 1; i < expression.operands.size(); ++i) {
    Value right = evaluate(*expression.operands[i]);
    line_ = expression.line;
    const Operator op = expression.operators[i - 1];
    bool holds = false;
    switch (op) {
      case Operator::kEqual:
        holds = equal(left, right);
        break;
      case Operator::kNotEqual:
        holds = !equal(left, right);
        break;
      case Operator::kIn:
        holds = contains(*heap_, right, left);
        break;
      case Operator::kNotIn:
        holds = !contains(*heap_, right, left);
        break;
      case Operator::kLess:
        holds = compare(left, right, op) < 0;
        break;
      case Operator::kLessEqual:
        holds = compare(left, right, op) <= 0;
        break;
      case Operator::kGreater:
        holds = compare(left, right, op) > 0;
        break;
      default:
        holds = compare(left, right, op) >= 0;
        break;
    }
    if (!holds) return Value::boolean(false);
    left = std::move(right);
  }
  return Value::boolean(true);
}

Value Interpreter::evaluate_logic(const Expression& expression) {
  Value value = evaluate(*expression.operands[0]);
  switch (expression.kind) {
    case ExpressionKind::kNot:
      return Value::boolean(!truth(value));
    case ExpressionKind::kNegate:
      line_ = expression.line;
      return negate(value);
    case ExpressionKind::kPositive:
      line_ = expression.line;
      return negate(negate(value));
    default:
      break;
  }
  const bool stops_at = expression.kind == ExpressionKind::kOr;
  for (size_t i = 1; i < expression.operands.size() && truth(value) != stops_at; ++i) {
    value = evaluate(*expression.operands[i]);
  }
  return value;
}

Value Interpreter::evaluate_conditional(const Expression& expression) {
  if (truth(evaluate(*expression.operands[0]))) return evaluate(*expression.operands[1]);
  if (expression.operands.size() > 2) return evaluate(*expression.operands[2]);
  return heap_->undefined("the condition of line " + std::to_string(expression.line) +
                          " does not hold, and it has no else");
}

Value Interpreter::evaluate_access(const Expression& expression) {
  const Value object = evaluate(*expression.operands[0]);
  if (expression.kind == ExpressionKind::kAttribute) {
    line_ = expression.line;
    return attribute(object, expression.text);
  }
  const Value key = evaluate(*expression.operands[1]);
  line_ = expression.line;
  return item(object, key);
}

Value Interpreter::evaluate_slice(const Expression& expression) {
  const Value object = evaluate(*expression.operands[0]);
  Value bounds[3];
  for (size_t i = 0; i < 3; ++i) {
    const Expression* bound = expression.operands[i + 1];
    bounds[i] = bound == nullptr ? Value::none() : evaluate(*bound);
  }
  line_ = expression.line;
  return slice(*heap_, object, bounds[0], bounds[1], bounds[2]);
}

void Interpreter::evaluate_arguments(const Expression& expression, size_t first,
                                     CallArguments* arguments) {
  for (size_t i = first; i < expression.operands.size(); ++i) {
    arguments->positional.push_back(evaluate(*expression.operands[i]));
  }
  for (const auto& [name, value] : expression.keywords) {
    arguments->keywords.emplace_back(name, evaluate(*value));
  }
  if (expression.star != nullptr) {
    const Value items = iterate(*heap_, evaluate(*expression.star));
    for (const Value& item : items.sequence().items) arguments->positional.push_back(item);
  }
  if (expression.double_star != nullptr) {
    const Value items = evaluate(*expression.double_star);
    if (!items.is(Kind::kDict)) fail("what follows ** is not a dict");
    for (const auto& [key, value] : items.dict().items) {
      if (!key.is_string()) fail("the names of arguments are texts");
      for (const auto& known : arguments->keywords) {
        if (known.first == key.text()) fail("the argument '" + key.text() + "' is given twice");
      }
      arguments->keywords.emplace_back(key.text(), value);
    }
  }
}

Value Interpreter::evaluate_call(const Expression& expression, const Value* caller) {
  const Value callee = evaluate(*expression.operands[0]);
  CallArguments arguments;
  evaluate_arguments(expression, 1, &arguments);
  line_ = expression.line;
  return call(callee, arguments, caller);
}

Value Interpreter::evaluate_filter(const Expression& expression, const Value* input) {
  const Expression* operand = expression.operands[0];
  Value value;
  if (operand == nullptr) {
    value = *input;
  } else if (operand->kind == ExpressionKind::kFilter) {
    const Level level(this);
    value = evaluate_filter(*operand, input);
  } else {
    value = evaluate(*operand);
  }
  CallArguments arguments;
  evaluate_arguments(expression, 1, &arguments);
  line_ = expression.line;
  if (expression.filter == nullptr) fail("there is no filter '" + expression.text + "'");
  return expression.filter->run(*this, value, arguments);
}

Value Interpreter::evaluate_test(const Expression& expression) {
  const Value value = evaluate(*expression.operands[0]);
  CallArguments arguments;
  evaluate_arguments(expression, 1, &arguments);
  line_ = expression.line;
  if (expression.test == nullptr) fail("there is no test '" + expression.text + "'");
  return Value::boolean(expression.test->run(*this, value, arguments));
}

}  // namespace mlcb::jinja
