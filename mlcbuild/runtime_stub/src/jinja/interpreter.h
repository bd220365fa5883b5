// Runs a parsed template.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "jinja/ast.h"
#include "jinja/builtins.h"
#include "jinja/value.h"

namespace mlcb::jinja {

class Interpreter {
 public:
  // now: seconds since 1970 (UTC), for strftime_now.
  Interpreter(const Template& program, Heap* heap, int64_t now);
  ~Interpreter();
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  // A variable of the template; one that the template does not name is left out.
  void set(std::string_view name, Value value);
  // The rendered text. Throws Error(MLCB_ERROR_ARGUMENT) that names the template's line. Call it
  // once.
  std::string run();

  // ---- for filters, tests and methods ----
  Heap& heap() { return *heap_; }
  int64_t now() const { return now_; }
  // object.name and object[key], as Jinja looks them up; undefined if there is no such thing.
  Value attribute(const Value& object, const std::string& name);
  Value item(const Value& object, const Value& key);
  Value filter(const std::string& name, const Value& value, const CallArguments& arguments);
  bool test(const std::string& name, const Value& value, const CallArguments& arguments);

 private:
  enum class Flow : uint8_t { kNext, kBreak, kContinue };
  class Level;  // counts how deep calls are nested
  class Scope;
  class Capture;

  Flow run_body(const Body& body);
  Flow run_statement(const Statement& statement);
  Flow run_if(const Statement& statement);
  Flow run_for(const Statement& statement);
  Flow run_loop(const Statement& statement, const Value& items, int64_t depth);
  Flow run_block(const Statement& statement);  // one with a scope and perhaps an output of its own
  void run_call_block(const Statement& statement);
  Value macro_value(const Statement& statement);
  Value call_macro(const FunctionObject& macro, const CallArguments& arguments,
                   const Value* caller);
  Value call_loop(const LoopObject& loop, const CallArguments& arguments);
  Value call_global(const FunctionObject& function, const CallArguments& arguments);
  Value call(const Value& callee, const CallArguments& arguments, const Value* caller);

  void assign(const Target& target, const Value& value);
  void write(std::string_view text);

  Value evaluate(const Expression& expression);
  Value evaluate_name(const Expression& expression);
  Value evaluate_list(const Expression& expression);
  Value evaluate_dict(const Expression& expression);
  Value evaluate_concat(const Expression& expression);
  Value evaluate_arithmetic(const Expression& expression);
  Value evaluate_compare(const Expression& expression);
  Value evaluate_logic(const Expression& expression);
  Value evaluate_conditional(const Expression& expression);
  Value evaluate_access(const Expression& expression);
  Value evaluate_slice(const Expression& expression);
  Value evaluate_call(const Expression& expression, const Value* caller);
  Value evaluate_filter(const Expression& expression, const Value* input);
  Value evaluate_test(const Expression& expression);
  void evaluate_arguments(const Expression& expression, size_t first, CallArguments* arguments);

  const Value* find_variable(int32_t name) const;
  void set_variable(int32_t name, Value value);
  Value loop_attribute(const Value& loop, std::string_view name);
  Value find_attribute(const Value& object, std::string_view name);

  const Template& program_;
  Heap* heap_;
  int64_t now_;
  std::vector<Value> variables_;  // what the caller set, by number of the name
  ScopeObject* scope_ = nullptr;
  std::string output_;
  std::string* out_ = &output_;
  size_t written_ = 0;  // bytes, to all outputs that are open
  int32_t line_ = 0;    // of what runs
  int level_ = 0;
  bool refused_ = false;  // raise_exception was called
};

}  // namespace mlcb::jinja
