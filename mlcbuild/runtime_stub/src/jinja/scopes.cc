#include "jinja/scopes.h"

namespace mlcb::jinja {
namespace {

// How a name gets its value when a scope begins.
enum class Source : uint8_t {
  kNone,       // the scope does not have the name
  kParameter,  // it is given
  kOuter,      // an outer scope's variable
  kCaller,     // what the caller of the template gave
  kHidden,     // nothing
};

class Symbols {
 public:
  Symbols(size_t names, const Symbols* parent)
      : parent_(parent), sources_(names, Source::kNone), stored_(names, 0) {}

  void load(int32_t name) {
    if (!has(name)) at(name) = Source::kCaller;
  }

  void store(int32_t name) {
    stored_[static_cast<size_t>(name)] = 1;
    if (at(name) == Source::kNone) at(name) = outer_has(name) ? Source::kOuter : Source::kHidden;
  }

  void declare(int32_t name) {
    stored_[static_cast<size_t>(name)] = 1;
    at(name) = Source::kParameter;
  }

  // Takes over what the branches of a condition, begun as copies of this, have found.
  void join(const Symbols& a, const Symbols& b, const Symbols& c) {
    for (size_t i = 0; i < sources_.size(); ++i) {
      for (const Symbols* branch : {&a, &b, &c}) {
        if (branch->sources_[i] != Source::kNone) sources_[i] = branch->sources_[i];
      }
      if (stored_[i] != 0 || (a.stored_[i] | b.stored_[i] | c.stored_[i]) == 0) continue;
      stored_[i] = 1;
      sources_[i] = outer_has(static_cast<int32_t>(i)) ? Source::kOuter : Source::kCaller;
    }
  }

  std::vector<int32_t> hidden() const {
    std::vector<int32_t> names;
    for (size_t i = 0; i < sources_.size(); ++i) {
      if (sources_[i] == Source::kHidden) names.push_back(static_cast<int32_t>(i));
    }
    return names;
  }

 private:
  Source& at(int32_t name) { return sources_[static_cast<size_t>(name)]; }
  bool has(int32_t name) const {
    return sources_[static_cast<size_t>(name)] != Source::kNone || outer_has(name);
  }
  bool outer_has(int32_t name) const { return parent_ != nullptr && parent_->has(name); }

  const Symbols* parent_;
  std::vector<Source> sources_;
  std::vector<uint8_t> stored_;
};

class Analyzer {
 public:
  explicit Analyzer(Template* program) : program_(*program) {}

  void run() {
    Symbols root(program_.names.size(), nullptr);
    read(&root, program_.body);
    program_.hidden = root.hidden();
    visit_scopes(root, program_.body);
  }

 private:
  // ---- what a scope reads and sets, without the scopes inside of it ----
  static void read(Symbols* symbols, const Expression* expression) {
    if (expression == nullptr) return;
    if (expression->kind == ExpressionKind::kName) symbols->load(expression->name);
    for (const Expression* operand : expression->operands) read(symbols, operand);
    for (const auto& keyword : expression->keywords) read(symbols, keyword.second);
    read(symbols, expression->star);
    read(symbols, expression->double_star);
  }

  static void write(Symbols* symbols, const Target& target, bool parameter) {
    switch (target.kind) {
      case TargetKind::kName:
        if (parameter) {
          symbols->declare(target.name);
        } else {
          symbols->store(target.name);
        }
        return;
      case TargetKind::kTuple:
        for (const Target& item : target.items) write(symbols, item, parameter);
        return;
      case TargetKind::kNamespace:
        symbols->load(target.name);
        return;
    }
  }

  static void read(Symbols* symbols, const Body& body) {
    for (const Statement* statement : body) read(symbols, *statement);
  }

  static void read(Symbols* symbols, const Statement& statement) {
    switch (statement.kind) {
      case StatementKind::kIf:
        read_condition(symbols, statement);
        return;
      case StatementKind::kSet:
        read(symbols, statement.value);
        write(symbols, statement.targets[0], false);
        return;
      case StatementKind::kSetBlock:  // its filter belongs to the inner scope
        write(symbols, statement.targets[0], false);
        return;
      case StatementKind::kMacro:
        symbols->store(statement.name);
        return;
      case StatementKind::kWith:
        for (const Expression* value : statement.values) read(symbols, value);
        return;
      default:
        read(symbols, statement.value);
        return;
    }
  }

  static void read_branch(Symbols* symbols, const Statement& statement, size_t index) {
    read(symbols, statement.values[index]);
    Symbols body = *symbols;
    read(&body, statement.bodies[index]);
    symbols->join(body, *symbols, *symbols);
  }

  static void read_condition(Symbols* symbols, const Statement& statement) {
    read(symbols, statement.values[0]);
    Symbols body = *symbols, others = *symbols, last = *symbols;
    read(&body, statement.bodies[0]);
    for (size_t i = 1; i < statement.values.size(); ++i) read_branch(&others, statement, i);
    if (statement.bodies.size() > statement.values.size()) read(&last, statement.bodies.back());
    symbols->join(body, others, last);
  }

  // ---- the scopes inside ----
  void visit_scopes(const Symbols& outer, const Body& body) {
    for (Statement* statement : body) visit_scope(outer, statement);
  }

  void visit_scope(const Symbols& outer, Statement* statement) {
    if (statement->kind == StatementKind::kIf) {
      for (const Body& branch : statement->bodies) visit_scopes(outer, branch);
      return;
    }
    for (size_t i = 0; i < statement->bodies.size(); ++i) {
      Symbols inner(program_.names.size(), &outer);
      const bool loop_else = statement->kind == StatementKind::kFor && i == 1;
      if (statement->kind == StatementKind::kFor && !loop_else) inner.declare(statement->name);
      const bool own_targets = statement->kind != StatementKind::kSetBlock && !loop_else;
      for (const Target& target : statement->targets) {
        if (own_targets) write(&inner, target, true);
      }
      if (statement->kind == StatementKind::kMacro ||
          statement->kind == StatementKind::kCallBlock) {
        for (const Expression* value : statement->values) read(&inner, value);
      }
      read(&inner, statement->bodies[i]);
      if (statement->kind == StatementKind::kFilterBlock) read(&inner, statement->value);
      statement->hidden.push_back(inner.hidden());
      visit_scopes(inner, statement->bodies[i]);
    }
  }

  Template& program_;
};

}  // namespace

void find_hidden_names(Template* program) { Analyzer(program).run(); }

}  // namespace mlcb::jinja
