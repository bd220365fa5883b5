#include "jinja/interpreter.h"

#include <algorithm>

#include "core/error.h"
#include "jinja/python.h"
#include "jinja/python_text.h"
#include "jinja/strftime.h"

namespace mlcb::jinja {
namespace {

constexpr int kMaxLevel = 600;                        // of nested expressions and blocks at run time
constexpr size_t kMaxOutput = size_t{32} << 20;       // bytes of one text
constexpr int64_t kMaxRange = 100000;                 // as in Jinja's sandbox

// The names that every template knows.
const std::pair<const char*, FunctionKind> kGlobals[] = {
    {"range", FunctionKind::kRange},
    {"dict", FunctionKind::kDict},
    {"namespace", FunctionKind::kNamespace},
    {"raise_exception", FunctionKind::kRaiseException},
    {"strftime_now", FunctionKind::kStrftimeNow},
};

}  // namespace

class Interpreter::Level {
 public:
  explicit Level(Interpreter* interpreter) : interpreter_(interpreter) {
    interpreter_->heap_->work(1);
    if (++interpreter_->level_ > kMaxLevel) {
      --interpreter_->level_;
      fail("calls are nested too deeply");
    }
  }
  ~Level() { --interpreter_->level_; }
  Level(const Level&) = delete;
  Level& operator=(const Level&) = delete;

 private:
  Interpreter* interpreter_;
};

// A scope of variables below the current one, or below another.
class Interpreter::Scope {
 public:
  explicit Scope(Interpreter* interpreter) : Scope(interpreter, interpreter->scope_) {}
  Scope(Interpreter* interpreter, const std::vector<int32_t>& hidden) : Scope(interpreter) {
    hide(hidden);
  }
  Scope(Interpreter* interpreter, ScopeObject* parent)
      : interpreter_(interpreter), before_(interpreter->scope_) {
    scope_ = interpreter->heap_->scope(parent);
    scope_->retain();
    interpreter->scope_ = scope_;
  }
  ~Scope() {
    interpreter_->scope_ = before_;
    scope_->release();
  }
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

  void hide(const std::vector<int32_t>& names) {
    for (const int32_t name : names) scope_->variables.emplace_back(name, Value());
  }

 private:
  Interpreter* interpreter_;
  ScopeObject* before_;
  ScopeObject* scope_;
};

// Output goes to a text of its own.
class Interpreter::Capture {
 public:
  explicit Capture(Interpreter* interpreter)
      : interpreter_(interpreter), before_(interpreter->out_), written_(interpreter->written_) {
    interpreter->out_ = &text;
  }
  ~Capture() {
    interpreter_->out_ = before_;
    interpreter_->written_ = written_;
  }
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;

  std::string text;

 private:
  Interpreter* interpreter_;
  std::string* before_;
  size_t written_;
};

Interpreter::Interpreter(const Template& program, Heap* heap, int64_t now)
    : program_(program), heap_(heap), now_(now), variables_(program.names.size()) {
  scope_ = heap->scope(nullptr);
  scope_->retain();
  for (const int32_t name : program.hidden) scope_->variables.emplace_back(name, Value());
  for (const auto& [name, kind] : kGlobals) {
    set(name, Value::object(Kind::kFunction, heap->function(kind)));
  }
}

Interpreter::~Interpreter() { scope_->release(); }

void Interpreter::set(std::string_view name, Value value) {
  const auto found = std::find(program_.names.begin(), program_.names.end(), name);
  if (found == program_.names.end()) return;
  variables_[static_cast<size_t>(found - program_.names.begin())] = std::move(value);
}

std::string Interpreter::run() {
  try {
    run_body(program_.body);
  } catch (const Error& error) {
    if (error.status() != MLCB_ERROR_ARGUMENT) throw;
    throw Error(MLCB_ERROR_ARGUMENT,
                std::string(refused_ ? "the model's chat template refuses this conversation"
                                     : "the model's chat template cannot render this conversation") +
                    "\nwhy: line " + std::to_string(line_) + ": " + error.what());
  }
  return std::move(output_);
}

void Interpreter::write(std::string_view text) {
  if (text.size() > kMaxOutput - written_) fail("the text is longer than a conversation may be");
  written_ += text.size();
  heap_->work(text.size() / 64);
  *out_ += text;
}

// ---- statements -------------------------------------------------------------------------------

Interpreter::Flow Interpreter::run_body(const Body& body) {
  for (const Statement* statement : body) {
    const Flow flow = run_statement(*statement);
    if (flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

Interpreter::Flow Interpreter::run_statement(const Statement& statement) {
  const Level level(this);
  line_ = statement.line;
  switch (statement.kind) {
    case StatementKind::kData:
      write(statement.text);
      return Flow::kNext;
    case StatementKind::kPrint: {
      const Value value = evaluate(*statement.value);
      line_ = statement.line;
      if (value.is_string()) {
        write(value.text());
      } else {
        write(text_of(value));
      }
      return Flow::kNext;
    }
    case StatementKind::kFor:
      return run_for(statement);
    case StatementKind::kIf:
      return run_if(statement);
    case StatementKind::kSet:
      assign(statement.targets[0], evaluate(*statement.value));
      return Flow::kNext;
    case StatementKind::kMacro:
      set_variable(statement.name, macro_value(statement));
      return Flow::kNext;
    case StatementKind::kCallBlock:
      run_call_block(statement);
      return Flow::kNext;
    case StatementKind::kSetBlock:
    case StatementKind::kFilterBlock:
    case StatementKind::kWith:
    case StatementKind::kScope:
      return run_block(statement);
    case StatementKind::kBreak:
      return Flow::kBreak;
    case StatementKind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNext;
}

Interpreter::Flow Interpreter::run_if(const Statement& statement) {
  for (size_t i = 0; i < statement.values.size(); ++i) {
    if (truth(evaluate(*statement.values[i]))) return run_body(statement.bodies[i]);
  }
  if (statement.bodies.size() > statement.values.size()) return run_body(statement.bodies.back());
  return Flow::kNext;
}

Interpreter::Flow Interpreter::run_for(const Statement& statement) {
  const Value items = evaluate(*statement.value);
  line_ = statement.line;
  return run_loop(statement, items, 0);
}

Interpreter::Flow Interpreter::run_loop(const Statement& statement, const Value& given,
                                        int64_t depth) {
  Value items = iterate(*heap_, given);
  if (statement.test != nullptr) {
    std::vector<Value> kept;
    for (const Value& item : items.sequence().items) {
      const Scope scope(this);
      assign(statement.targets[0], item);
      if (truth(evaluate(*statement.test))) kept.push_back(item);
    }
    items = heap_->list(std::move(kept));
  }
  const std::vector<Value>& list = items.sequence().items;
  if (list.empty()) {
    if (statement.bodies.size() < 2) return Flow::kNext;
    const Scope scope(this, statement.hidden[1]);
    return run_body(statement.bodies[1]);
  }
  LoopObject* loop = heap_->loop();
  const Value loop_value = Value::object(Kind::kLoop, loop);
  loop->items = items;
  loop->depth0 = depth;
  if (statement.recursive) {
    loop->recursive = &statement;
    loop->scope = scope_;
    scope_->retain();
  }
  for (size_t i = 0; i < list.size(); ++i) {
    loop->index0 = static_cast<int64_t>(i);
    const Scope scope(this, statement.hidden[0]);
    set_variable(statement.name, loop_value);
    assign(statement.targets[0], list[i]);
    if (run_body(statement.bodies[0]) == Flow::kBreak) break;
  }
  return Flow::kNext;
}

Interpreter::Flow Interpreter::run_block(const Statement& statement) {
  std::vector<Value> values;
  for (const Expression* value : statement.values) values.push_back(evaluate(*value));
  if (statement.kind == StatementKind::kWith || statement.kind == StatementKind::kScope) {
    const Scope scope(this, statement.hidden[0]);
    for (size_t i = 0; i < values.size(); ++i) assign(statement.targets[i], values[i]);
    return run_body(statement.bodies[0]);
  }
  Value text;
  {
    Capture capture(this);
    const Scope scope(this, statement.hidden[0]);
    const Flow flow = run_body(statement.bodies[0]);
    if (flow != Flow::kNext) return flow;
    text = heap_->string(std::move(capture.text));
    if (statement.value != nullptr) text = evaluate_filter(*statement.value, &text);
  }
  if (statement.kind == StatementKind::kSetBlock) {
    assign(statement.targets[0], text);
  } else {
    write(text_of(text));
  }
  return Flow::kNext;
}

void Interpreter::run_call_block(const Statement& statement) {
  const Value caller = macro_value(statement);
  const Value text = evaluate_call(*statement.value, &caller);
  write(text_of(text));
}

void Interpreter::assign(const Target& target, const Value& value) {
  switch (target.kind) {
    case TargetKind::kName:
      set_variable(target.name, value);
      return;
    case TargetKind::kTuple: {
      const Value items = iterate(*heap_, value);
      const size_t found = items.sequence().items.size();
      if (found != target.items.size()) {
        fail(std::to_string(target.items.size()) + " values are expected, there are " +
             std::to_string(found));
      }
      for (size_t i = 0; i < found; ++i) assign(target.items[i], items.sequence().items[i]);
      return;
    }
    case TargetKind::kNamespace: {
      const Value* found = find_variable(target.name);
      if (found == nullptr || !found->is(Kind::kNamespace)) {
        fail("an attribute can only be set on a namespace");
      }
      if (target.attribute[0] == '_') fail("an attribute's name starts with an underscore");
      auto& items = found->name_space().items;
      for (auto& [name, old] : items) {
        if (name == target.attribute) {
          old = value;
          return;
        }
      }
      items.emplace_back(target.attribute, value);
      return;
    }
  }
}

// ---- variables --------------------------------------------------------------------------------

const Value* Interpreter::find_variable(int32_t name) const {
  for (const ScopeObject* scope = scope_; scope != nullptr; scope = scope->parent) {
    for (const auto& [known, value] : scope->variables) {
      if (known == name) return value.given() ? &value : nullptr;  // hidden
    }
  }
  const Value& value = variables_[static_cast<size_t>(name)];
  return value.given() ? &value : nullptr;
}

void Interpreter::set_variable(int32_t name, Value value) {
  for (auto& [known, old] : scope_->variables) {
    if (known == name) {
      old = std::move(value);
      return;
    }
  }
  scope_->variables.emplace_back(name, std::move(value));
}

// ---- calls ------------------------------------------------------------------------------------

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
                           arguments.positional.begin() +
                               static_cast<ptrdiff_t>(std::min(count, arguments.positional.size())));
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
      if (loop.last_changed.given() && equal(loop.last_changed, value)) return Value::boolean(false);
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
  return heap_->list(std::move(items), expression.kind == ExpressionKind::kTuple ? Flavor::kTuple
                                                                                  : Flavor::kList);
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
