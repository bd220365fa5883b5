// Macros, recursive loops and the functions that every template knows.
#include <algorithm>

#include "jinja/frames.h"
#include "jinja/interpreter.h"
#include "jinja/python.h"
#include "jinja/strftime.h"

namespace mlcb::jinja {

constexpr int64_t kMaxRange = 100000;  // as in Jinja's sandbox

Value Interpreter::macro_value(const Statement& statement) {
  FunctionObject* macro = heap_->function(FunctionKind::kMacro);
  macro->macro = &statement;
  macro->closure = scope_;
  scope_->retain();
  return Value::object(Kind::kFunction, macro);
}

Value Interpreter::call_macro(const FunctionObject& function, const CallArguments& arguments,
                              const Value* caller) {
  const Statement& macro = *function.macro;
  const size_t count = macro.targets.size();
  const size_t required = count - macro.values.size();
  std::vector<Value> given(arguments.positional.begin(),
                           arguments.positional.begin() + static_cast<ptrdiff_t>(std::min(
                                                              count, arguments.positional.size())));
  given.resize(count);
  std::vector<std::pair<Value, Value>> others;
  Value own_caller = caller != nullptr ? *caller : Value();
  for (const auto& [name, value] : arguments.keywords) {
    bool known = false;
    for (size_t i = arguments.positional.size(); i < count && !known; ++i) {
      known = program_.names[static_cast<size_t>(macro.targets[i].name)] == name;
      if (known) given[i] = value;
    }
    if (known) continue;
    if (name == "caller" && macro.uses_caller) {
      own_caller = value;
    } else if (macro.uses_kwargs) {
      others.emplace_back(heap_->string(name), value);
    } else {
      fail("macro '" + macro.text + "' takes no argument '" + name + "'");
    }
  }
  if (arguments.positional.size() > count && !macro.uses_varargs) {
    fail("macro '" + macro.text + "' takes " + std::to_string(count) + " arguments, " +
         std::to_string(arguments.positional.size()) + " are given");
  }
  if (caller != nullptr && !macro.uses_caller) {
    fail("macro '" + macro.text + "' has no place for its caller");
  }
  Capture capture(this);
  Scope scope(this, function.closure);
  scope.hide(macro.hidden[0]);
  const int32_t line = line_;
  for (size_t i = 0; i < count; ++i) {
    const std::string& name = program_.names[static_cast<size_t>(macro.targets[i].name)];
    if (!given[i].given()) {
      given[i] = i >= required ? evaluate(*macro.values[i - required])
                               : heap_->undefined("parameter '" + name + "' was not provided");
    }
    set_variable(macro.targets[i].name, given[i]);
  }
  const auto set_special = [&](const char* name, Value value) {
    const auto found = std::find(program_.names.begin(), program_.names.end(), name);
    set_variable(static_cast<int32_t>(found - program_.names.begin()), std::move(value));
  };
  if (macro.uses_caller) {
    set_special("caller", own_caller.given() ? own_caller : heap_->undefined("no caller defined"));
  }
  if (macro.uses_kwargs) set_special("kwargs", heap_->dict(std::move(others)));
  if (macro.uses_varargs) {
    std::vector<Value> rest;
    for (size_t i = count; i < arguments.positional.size(); ++i) {
      rest.push_back(arguments.positional[i]);
    }
    set_special("varargs", heap_->list(std::move(rest), Flavor::kTuple));
  }
  run_body(macro.bodies[0]);
  line_ = line;
  return heap_->string(std::move(capture.text));
}

Value Interpreter::call_loop(const LoopObject& loop, const CallArguments& arguments) {
  if (loop.recursive == nullptr) fail("the loop is not marked as recursive");
  const Parameters<1> given("loop", arguments, {"iterable"}, 1);
  Capture capture(this);
  const Scope scope(this, loop.scope);
  run_loop(*loop.recursive, given[0], loop.depth0 + 1);
  return heap_->string(std::move(capture.text));
}

Value Interpreter::call_global(const FunctionObject& function, const CallArguments& arguments) {
  switch (function.function_kind) {
    case FunctionKind::kRange: {
      const Parameters<3> given("range", arguments, {"", "", ""}, 1);
      const bool one = !given[1].given();
      const int64_t start = one ? 0 : integer_of(given[0], "a range's start");
      const int64_t stop = integer_of(given[one ? 0 : 1], "a range's end");
      const int64_t step = given[2].given() ? integer_of(given[2], "a range's step") : 1;
      if (step == 0) fail("a range's step is zero");
      std::vector<Value> items;
      for (int64_t i = start; step > 0 ? i < stop : i > stop;) {
        if (static_cast<int64_t>(items.size()) >= kMaxRange) fail("a range is too long");
        items.push_back(Value::integer(i));
        if (__builtin_add_overflow(i, step, &i)) break;
      }
      heap_->work(items.size());
      return heap_->list(std::move(items), Flavor::kRange);
    }
    case FunctionKind::kDict:
    case FunctionKind::kNamespace: {
      std::vector<std::pair<Value, Value>> items;
      if (arguments.positional.size() > 1) fail("dict and namespace take one value at most");
      const auto add = [&](const Value& key, const Value& value) {
        require_hashable(key);
        heap_->work(1 + items.size() / 8);
        for (auto& [known, old] : items) {
          if (equal(known, key)) {
            old = value;
            return;
          }
        }
        items.emplace_back(key, value);
      };
      if (!arguments.positional.empty()) {
        const Value& from = arguments.positional[0];
        if (from.is(Kind::kDict)) {
          for (const auto& [key, value] : from.dict().items) add(key, value);
        } else {
          const Value pairs = iterate(*heap_, from);
          for (const Value& pair : pairs.sequence().items) {
            const Value both = iterate(*heap_, pair);
            if (both.sequence().items.size() != 2) fail("a dict is made of pairs");
            add(both.sequence().items[0], both.sequence().items[1]);
          }
        }
      }
      for (const auto& [name, value] : arguments.keywords) add(heap_->string(name), value);
      if (function.function_kind == FunctionKind::kDict) return heap_->dict(std::move(items));
      Value result = heap_->name_space();
      for (const auto& [key, value] : items) {
        if (!key.is_string()) fail("a namespace's names are texts");
        if (!key.text().empty() && key.text()[0] == '_') {
          fail("an attribute's name starts with an underscore");
        }
        result.name_space().items.emplace_back(key.text(), value);
      }
      return result;
    }
    case FunctionKind::kRaiseException: {
      const Parameters<1> given("raise_exception", arguments, {"message"}, 1);
      refused_ = true;
      fail(text_of(given[0]));
    }
    case FunctionKind::kStrftimeNow: {
      const Parameters<1> given("strftime_now", arguments, {"format"}, 1);
      if (!given[0].is_string()) fail("strftime_now takes a text");
      return heap_->string(strftime_utc(given[0].text(), now_));
    }
    case FunctionKind::kLoopCycle: {
      if (!arguments.keywords.empty()) fail("loop.cycle takes no named arguments");
      if (arguments.positional.empty()) fail("loop.cycle takes at least one value");
      const size_t index = static_cast<size_t>(function.self.loop().index0);
      return arguments.positional[index % arguments.positional.size()];
    }
    case FunctionKind::kLoopChanged: {
      if (!arguments.keywords.empty()) fail("loop.changed takes no named arguments");
      const Value value = heap_->list(arguments.positional, Flavor::kTuple);
      LoopObject& loop = function.self.loop();
      if (loop.last_changed.given() && equal(loop.last_changed, value))
        return Value::boolean(false);
      loop.last_changed = value;
      return Value::boolean(true);
    }
    default:
      fail("this cannot be called");
  }
}

Value Interpreter::call(const Value& callee, const CallArguments& arguments, const Value* caller) {
  if (callee.is(Kind::kLoop)) return call_loop(callee.loop(), arguments);
  if (callee.is(Kind::kUndefined)) fail_undefined(callee);
  if (!callee.is(Kind::kFunction)) fail(std::string(type_name(callee)) + " cannot be called");
  const FunctionObject& function = callee.function();
  if (function.function_kind == FunctionKind::kMacro) {
    return call_macro(function, arguments, caller);
  }
  if (caller != nullptr) fail("only a macro can be called with a block");
  if (function.function_kind == FunctionKind::kMethod) {
    return function.method->run(*this, function.self, arguments);
  }
  return call_global(function, arguments);
}

}  // namespace mlcb::jinja
