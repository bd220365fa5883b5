// What the interpreter enters and leaves while it runs: levels, scopes, outputs.
#pragma once
#include <string>
#include <vector>

#include "jinja/interpreter.h"

namespace mlcb::jinja {

constexpr int kMaxLevel = 400;  // of nested expressions and blocks at run time

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

}  // namespace mlcb::jinja
