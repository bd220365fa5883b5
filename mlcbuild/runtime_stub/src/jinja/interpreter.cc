#include "jinja/interpreter.h"

#include <algorithm>

#include "core/error.h"
#include "jinja/frames.h"
#include "jinja/python.h"

namespace mlcb::jinja {
namespace {

constexpr size_t kMaxOutput = size_t{32} << 20;  // bytes of one text

// The names that every template knows.
const std::pair<const char*, FunctionKind> kGlobals[] = {
    {"range", FunctionKind::kRange},
    {"dict", FunctionKind::kDict},
    {"namespace", FunctionKind::kNamespace},
    {"raise_exception", FunctionKind::kRaiseException},
    {"strftime_now", FunctionKind::kStrftimeNow},
};

}  // namespace

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
    throw Error(
        MLCB_ERROR_ARGUMENT,
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

}  // namespace mlcb::jinja
