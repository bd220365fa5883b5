#include "jinja/parser.h"

#include <algorithm>
#include <initializer_list>

#include "core/error.h"
#include "core/json.h"
#include "jinja/builtins.h"
#include "jinja/lexer.h"
#include "jinja/scopes.h"

namespace mlcb::jinja {
namespace {

constexpr int kMaxNesting = 120;        // of blocks and brackets in the source
constexpr int32_t kMaxTreeDepth = 200;  // of an expression, where a.b.c is three deep

[[noreturn]] void fail_unsupported(int32_t line, const std::string& what) {
  throw Error(MLCB_ERROR_UNSUPPORTED,
              "the chat template uses what the runtime does not have\nwhy: line " +
                  std::to_string(line) + ": " + what);
}

class Parser {
 public:
  explicit Parser(std::string_view source) : tokens_(tokenize(source)) {}

  Template run() {
    result_.body = parse_body(1, {});
    check(result_.body, false);
    find_hidden_names(&result_);
    return std::move(result_);
  }

 private:
  // ---- tokens ----
  const Token& current() const { return tokens_[at_]; }
  const Token& ahead() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  int32_t line() const { return current().line; }

  const Token& next() {
    const Token& token = tokens_[at_];
    if (at_ + 1 < tokens_.size()) ++at_;
    return token;
  }

  static std::string describe(const Token& token) {
    switch (token.kind) {
      case TokenKind::kVariableEnd:
        return "'}}'";
      case TokenKind::kBlockEnd:
        return "'%}'";
      case TokenKind::kEnd:
        return "the end of the template";
      case TokenKind::kInteger:
      case TokenKind::kFloat:
        return "a number";
      case TokenKind::kString:
        return "a string";
      default:
        return "'" + token.text + "'";
    }
  }

  [[noreturn]] void fail_here(const std::string& expected) const {
    fail_syntax(line(), "expected " + expected + ", found " + describe(current()));
  }

  bool skip_if(std::string_view op) {
    if (!current().is(op)) return false;
    next();
    return true;
  }

  bool skip_if_name(std::string_view name) {
    if (!current().is_name(name)) return false;
    next();
    return true;
  }

  void expect(std::string_view op) {
    if (!skip_if(op)) fail_here("'" + std::string(op) + "'");
  }

  void expect_name(std::string_view name) {
    if (!skip_if_name(name)) fail_here("'" + std::string(name) + "'");
  }

  void expect(TokenKind kind, const char* what) {
    if (current().kind != kind) fail_here(what);
    next();
  }

  const std::string& take_name() {
    if (current().kind != TokenKind::kName) fail_here("a name");
    return next().text;
  }

  // ---- the tree ----
  int32_t name_number(std::string_view name) {
    std::vector<std::string>& names = result_.names;
    const auto found = std::find(names.begin(), names.end(), name);
    if (found != names.end()) return static_cast<int32_t>(found - names.begin());
    names.emplace_back(name);
    return static_cast<int32_t>(names.size() - 1);
  }

  Expression* make(ExpressionKind kind, int32_t at) {
    result_.expressions.push_back(std::make_unique<Expression>());
    Expression* made = result_.expressions.back().get();
    made->kind = kind;
    made->line = at;
    return made;
  }

  void add(Expression* parent, const Expression* child) {
    parent->operands.push_back(child);
    if (child != nullptr) parent->depth = std::max(parent->depth, child->depth + 1);
    if (parent->depth > kMaxTreeDepth) fail_unsupported(parent->line, "an expression is too deep");
  }

  Expression* make(ExpressionKind kind, int32_t at,
                   std::initializer_list<const Expression*> operands) {
    Expression* made = make(kind, at);
    for (const Expression* operand : operands) add(made, operand);
    return made;
  }

  Expression* constant(Value value, int32_t at) {
    Expression* made = make(ExpressionKind::kConstant, at);
    made->constant = std::move(value);
    return made;
  }

  Value immortal(Kind kind, std::string text) {
    result_.strings.push_back(std::make_unique<StringObject>(nullptr, std::move(text)));
    return Value::object(kind, result_.strings.back().get());
  }

  Statement* make(StatementKind kind, int32_t at) {
    result_.statements.push_back(std::make_unique<Statement>());
    Statement* made = result_.statements.back().get();
    made->kind = kind;
    made->line = at;
    return made;
  }

  class Deeper {
   public:
    explicit Deeper(Parser* parser) : parser_(parser) {
      if (++parser_->depth_ > kMaxNesting) {
        fail_unsupported(parser_->line(), "blocks or brackets are nested too deeply");
      }
    }
    ~Deeper() { --parser_->depth_; }

   private:
    Parser* parser_;
  };

  // ---- statements ----
  bool at_end_tag(std::initializer_list<const char*> ends) const {
    return std::any_of(ends.begin(), ends.end(),
                       [&](const char* end) { return current().is_name(end); });
  }

  // Statements up to one of the end tags, whose name is then the current token; begin is the line
  // of the block.
  Body parse_body(int32_t begin, std::initializer_list<const char*> ends) {
    const Deeper deeper(this);
    Body body;
    while (true) {
      const Token& token = current();
      if (token.kind == TokenKind::kEnd) {
        if (ends.size() == 0) return body;
        fail_syntax(begin,
                    "the block that begins here has no '" + std::string(*(ends.end() - 1)) + "'");
      }
      if (token.kind == TokenKind::kData) {
        Statement* data = make(StatementKind::kData, token.line);
        data->text = token.text;
        body.push_back(data);
        next();
      } else if (token.kind == TokenKind::kVariableBegin) {
        next();
        Statement* print = make(StatementKind::kPrint, token.line);
        print->value = parse_tuple(true, {});
        body.push_back(print);
        expect(TokenKind::kVariableEnd, "'}}'");
      } else {
        next();  // kBlockBegin: code() of the lexer leaves nothing else here
        if (at_end_tag(ends)) return body;
        parse_statement(&body);
        expect(TokenKind::kBlockEnd, "'%}'");
      }
    }
  }

  // The body of a block whose tag ends here; the end tag's name is then the current token.
  Body parse_block(std::initializer_list<const char*> ends) {
    skip_if(":");
    const int32_t begin = line();
    expect(TokenKind::kBlockEnd, "'%}'");
    return parse_body(begin, ends);
  }

  Body parse_whole_block(const char* end) {
    Body body = parse_block({end});
    next();
    return body;
  }

  // The same where "break" may stand, or may not.
  Body parse_block(bool in_loop, std::initializer_list<const char*> ends) {
    const bool before = in_loop_;
    in_loop_ = in_loop;
    Body body = parse_block(ends);
    in_loop_ = before;
    return body;
  }

  Body parse_whole_block(bool in_loop, const char* end) {
    Body body = parse_block(in_loop, {end});
    next();
    return body;
  }

  void parse_statement(Body* body) {
    if (current().kind != TokenKind::kName) fail_here("the name of a tag");
    const Token& token = next();
    const std::string& tag = token.text;
    if (tag == "print") {
      while (current().kind != TokenKind::kBlockEnd) {
        Statement* print = make(StatementKind::kPrint, token.line);
        print->value = parse_expression();
        body->push_back(print);
        if (current().kind != TokenKind::kBlockEnd) expect(",");
      }
      return;
    }
    Statement* made = nullptr;
    if (tag == "for") {
      made = parse_for(token.line);
    } else if (tag == "if") {
      made = parse_if(token.line);
    } else if (tag == "set") {
      made = parse_set(token.line);
    } else if (tag == "macro") {
      made = parse_macro(token.line);
    } else if (tag == "call") {
      made = parse_call_block(token.line);
    } else if (tag == "filter") {
      made = parse_filter_block(token.line);
    } else if (tag == "with") {
      made = parse_with(token.line);
    } else if (tag == "generation") {
      made = make(StatementKind::kScope, token.line);
      made->bodies.push_back(parse_whole_block(false, "endgeneration"));
    } else if (tag == "break" || tag == "continue") {
      if (!in_loop_) fail_syntax(token.line, "'" + tag + "' stands outside of a loop");
      made = make(tag == "break" ? StatementKind::kBreak : StatementKind::kContinue, token.line);
    } else {
      for (const char* known : {"block", "extends", "include", "import", "from", "autoescape"}) {
        if (tag == known) fail_unsupported(token.line, "the tag '" + tag + "'");
      }
      fail_syntax(token.line, "unknown tag '" + tag + "'");
    }
    body->push_back(made);
  }

  Statement* parse_for(int32_t at) {
    Statement* made = make(StatementKind::kFor, at);
    made->name = name_number("loop");
    ++loops_;
    made->targets.push_back(parse_target(false, "in"));
    expect_name("in");
    made->value = parse_tuple(false, {"recursive"});
    if (skip_if_name("if")) made->test = parse_expression();
    made->recursive = skip_if_name("recursive");
    made->bodies.push_back(parse_block(true, {"else", "endfor"}));
    if (next().text == "else") made->bodies.push_back(parse_whole_block("endfor"));
    --loops_;
    return made;
  }

  Statement* parse_if(int32_t at) {
    Statement* made = make(StatementKind::kIf, at);
    while (true) {
      made->values.push_back(parse_tuple(false, {}));
      made->bodies.push_back(parse_block({"elif", "else", "endif"}));
      const std::string& end = next().text;
      if (end == "elif") continue;
      if (end == "else") made->bodies.push_back(parse_whole_block("endif"));
      return made;
    }
  }

  Statement* parse_set(int32_t at) {
    Target target = parse_target(true, nullptr);
    Statement* made = nullptr;
    if (skip_if("=")) {
      made = make(StatementKind::kSet, at);
      made->value = parse_tuple(true, {});
    } else {
      made = make(StatementKind::kSetBlock, at);
      made->value = parse_filters(nullptr);
      made->bodies.push_back(parse_whole_block("endset"));
    }
    made->targets.push_back(std::move(target));
    return made;
  }

  void parse_signature(Statement* macro) {
    expect("(");
    while (!current().is(")")) {
      if (!macro->targets.empty()) expect(",");
      Target parameter;
      parameter.line = line();
      parameter.name = name_number(take_name());
      macro->targets.push_back(std::move(parameter));
      if (skip_if("=")) {
        macro->values.push_back(parse_expression());
      } else if (!macro->values.empty()) {
        fail_syntax(line(), "a parameter without a default follows one with a default");
      }
    }
    expect(")");
  }

  // The body of a macro or of a call block.
  void parse_macro_body(Statement* macro, const char* end) {
    macros_.push_back(macro);
    const int loops_before = loops_;
    macro->bodies.push_back(parse_whole_block(false, end));
    loops_ = loops_before;
    macros_.pop_back();
  }

  Statement* parse_macro(int32_t at) {
    Statement* made = make(StatementKind::kMacro, at);
    made->text = take_name();
    made->name = name_number(made->text);
    parse_signature(made);
    parse_macro_body(made, "endmacro");
    return made;
  }

  Statement* parse_call_block(int32_t at) {
    Statement* made = make(StatementKind::kCallBlock, at);
    made->text = "caller";
    if (current().is("(")) parse_signature(made);
    made->value = parse_expression();
    if (made->value->kind != ExpressionKind::kCall) fail_syntax(at, "expected a call");
    parse_macro_body(made, "endcall");
    return made;
  }

  Statement* parse_filter_block(int32_t at) {
    Statement* made = make(StatementKind::kFilterBlock, at);
    made->value = parse_filters(parse_filter(nullptr));
    made->bodies.push_back(parse_whole_block("endfilter"));
    return made;
  }

  Statement* parse_with(int32_t at) {
    Statement* made = make(StatementKind::kWith, at);
    while (current().kind != TokenKind::kBlockEnd) {
      if (!made->targets.empty()) expect(",");
      made->targets.push_back(parse_target(false, nullptr));
      expect("=");
      made->values.push_back(parse_expression());
    }
    made->bodies.push_back(parse_whole_block("endwith"));
    return made;
  }

  // ---- targets ----
  static bool is_constant_name(std::string_view name) {
    return name == "true" || name == "false" || name == "none" || name == "True" ||
           name == "False" || name == "None";
  }

  Target parse_target(bool with_namespace, const char* end) {
    const Deeper deeper(this);
    std::vector<Target> items;
    bool tuple = false;
    const int32_t at = line();
    while (!(end != nullptr && current().is_name(end)) && !current().is("=") &&
           !current().is(")") && current().kind != TokenKind::kBlockEnd) {
      items.push_back(parse_single_target(with_namespace));
      if (!skip_if(",")) break;
      tuple = true;
    }
    if (items.empty()) fail_here("a name to assign to");
    if (!tuple) return std::move(items[0]);
    Target target;
    target.kind = TargetKind::kTuple;
    target.line = at;
    target.items = std::move(items);
    return target;
  }

  Target parse_single_target(bool with_namespace) {
    Target target;
    target.line = line();
    if (skip_if("(")) {
      target = parse_target(with_namespace, nullptr);
      expect(")");
      return target;
    }
    const std::string& name = take_name();
    if (is_constant_name(name)) fail_syntax(target.line, "'" + name + "' cannot be assigned to");
    target.name = name_number(name);
    if (with_namespace && skip_if(".")) {
      target.kind = TargetKind::kNamespace;
      target.attribute = take_name();
    } else if (name == "loop" && loops_ > 0) {
      fail_syntax(target.line, "'loop' cannot be assigned to inside of a loop");
    }
    return target;
  }

  // ---- expressions ----
  Expression* parse_tuple(bool with_condition, std::initializer_list<const char*> ends,
                          bool in_parentheses = false) {
    const int32_t at = line();
    std::vector<Expression*> items;
    bool tuple = false;
    while (true) {
      const TokenKind kind = current().kind;
      if (kind == TokenKind::kVariableEnd || kind == TokenKind::kBlockEnd || current().is(")") ||
          at_end_tag(ends)) {
        break;
      }
      items.push_back(with_condition ? parse_expression() : parse_or());
      if (!skip_if(",")) break;
      tuple = true;
    }
    if (!tuple && !items.empty()) return items[0];
    if (items.empty() && !in_parentheses) fail_here("an expression");
    Expression* made = make(ExpressionKind::kTuple, at);
    for (const Expression* item : items) add(made, item);
    return made;
  }

  Expression* parse_expression() {
    const Deeper deeper(this);
    const int32_t at = line();
    Expression* left = parse_or();
    while (skip_if_name("if")) {
      Expression* test = parse_or();
      Expression* made = make(ExpressionKind::kConditional, at, {test, left});
      if (skip_if_name("else")) add(made, parse_expression());
      left = made;
    }
    return left;
  }

  Expression* parse_or() {
    const int32_t at = line();
    Expression* left = parse_and();
    if (!current().is_name("or")) return left;
    Expression* made = make(ExpressionKind::kOr, at, {left});
    while (skip_if_name("or")) add(made, parse_and());
    return made;
  }

  Expression* parse_and() {
    const int32_t at = line();
    Expression* left = parse_not();
    if (!current().is_name("and")) return left;
    Expression* made = make(ExpressionKind::kAnd, at, {left});
    while (skip_if_name("and")) add(made, parse_not());
    return made;
  }

  Expression* parse_not() {
    if (!current().is_name("not")) return parse_compare();
    const Deeper deeper(this);
    const int32_t at = next().line;
    return make(ExpressionKind::kNot, at, {parse_not()});
  }

  bool take_comparison(Operator* op) {
    static const std::pair<const char*, Operator> kOperators[] = {
        {"==", Operator::kEqual},     {"!=", Operator::kNotEqual}, {"<", Operator::kLess},
        {"<=", Operator::kLessEqual}, {">", Operator::kGreater},   {">=", Operator::kGreaterEqual}};
    for (const auto& [text, value] : kOperators) {
      *op = value;
      if (skip_if(text)) return true;
    }
    *op = Operator::kIn;
    if (skip_if_name("in")) return true;
    if (!current().is_name("not") || !ahead().is_name("in")) return false;
    next();
    next();
    *op = Operator::kNotIn;
    return true;
  }

  Expression* parse_compare() {
    const int32_t at = line();
    Expression* left = parse_sum();
    Operator op = Operator::kEqual;
    if (!take_comparison(&op)) return left;
    Expression* made = make(ExpressionKind::kCompare, at, {left});
    do {
      made->operators.push_back(op);
      add(made, parse_sum());
    } while (take_comparison(&op));
    return made;
  }

  // operand (op operand)*, from left to right.
  template <typename Parse>
  Expression* parse_chain(std::initializer_list<std::pair<const char*, Operator>> operators,
                          Parse parse) {
    const int32_t at = line();
    Expression* left = parse();
    Expression* made = nullptr;
    while (true) {
      const auto found = std::find_if(operators.begin(), operators.end(),
                                      [&](const auto& op) { return current().is(op.first); });
      if (found == operators.end()) return made != nullptr ? made : left;
      next();
      if (made == nullptr) made = make(ExpressionKind::kArithmetic, at, {left});
      made->operators.push_back(found->second);
      add(made, parse());
    }
  }

  Expression* parse_sum() {
    return parse_chain({{"+", Operator::kAdd}, {"-", Operator::kSubtract}},
                       [&] { return parse_concat(); });
  }

  Expression* parse_concat() {
    const int32_t at = line();
    Expression* left = parse_product();
    if (!current().is("~")) return left;
    Expression* made = make(ExpressionKind::kConcat, at, {left});
    while (skip_if("~")) add(made, parse_product());
    return made;
  }

  Expression* parse_product() {
    return parse_chain({{"*", Operator::kMultiply},
                        {"/", Operator::kDivide},
                        {"//", Operator::kFloorDivide},
                        {"%", Operator::kModulo}},
                       [&] { return parse_power(); });
  }

  Expression* parse_power() {
    return parse_chain({{"**", Operator::kPower}}, [&] { return parse_unary(true); });
  }

  Expression* parse_unary(bool with_filters) {
    const Deeper deeper(this);
    const int32_t at = line();
    Expression* made = nullptr;
    if (skip_if("-")) {
      made = make(ExpressionKind::kNegate, at, {parse_unary(false)});
    } else if (skip_if("+")) {
      made = make(ExpressionKind::kPositive, at, {parse_unary(false)});
    } else {
      made = parse_primary();
    }
    made = parse_postfix(made);
    return with_filters ? parse_filters_and_tests(made) : made;
  }

  Expression* parse_primary() {
    const Token& token = current();
    switch (token.kind) {
      case TokenKind::kName:
        next();
        if (token.text == "true" || token.text == "True" || token.text == "false" ||
            token.text == "False") {
          return constant(Value::boolean(token.text[0] == 't' || token.text[0] == 'T'), token.line);
        }
        if (token.text == "none" || token.text == "None") {
          return constant(Value::none(), token.line);
        }
        return name(token);
      case TokenKind::kString: {
        std::string text;
        while (current().kind == TokenKind::kString) text += next().text;
        return constant(immortal(Kind::kString, std::move(text)), token.line);
      }
      case TokenKind::kInteger:
        next();
        return constant(Value::integer(token.integer), token.line);
      case TokenKind::kFloat:
        next();
        return constant(Value::real(token.real), token.line);
      default:
        break;
    }
    if (skip_if("(")) {
      const Deeper deeper(this);
      Expression* made = parse_tuple(true, {}, true);
      expect(")");
      return made;
    }
    if (token.is("[")) return parse_list();
    if (token.is("{")) return parse_dict();
    fail_here("an expression");
  }

  Expression* name(const Token& token) {
    Expression* made = make(ExpressionKind::kName, token.line);
    made->name = name_number(token.text);
    for (Statement* macro : macros_) {
      macro->uses_varargs |= token.text == "varargs";
      macro->uses_kwargs |= token.text == "kwargs";
      macro->uses_caller |= token.text == "caller";
    }
    return made;
  }

  Expression* parse_list() {
    const Deeper deeper(this);
    Expression* made = make(ExpressionKind::kList, next().line);
    while (!current().is("]")) {
      if (!made->operands.empty()) {
        expect(",");
        if (current().is("]")) break;
      }
      add(made, parse_expression());
    }
    next();
    return made;
  }

  Expression* parse_dict() {
    const Deeper deeper(this);
    Expression* made = make(ExpressionKind::kDict, next().line);
    while (!current().is("}")) {
      if (!made->operands.empty()) {
        expect(",");
        if (current().is("}")) break;
      }
      add(made, parse_expression());
      expect(":");
      add(made, parse_expression());
    }
    next();
    return made;
  }

  Expression* parse_postfix(Expression* made) {
    while (true) {
      if (current().is(".") || current().is("[")) {
        made = parse_subscript(made);
      } else if (current().is("(")) {
        made = parse_call(made);
      } else {
        return made;
      }
    }
  }

  Expression* parse_subscript(Expression* object) {
    const int32_t at = line();
    if (skip_if(".")) {
      const Token& token = next();
      if (token.kind == TokenKind::kInteger) {
        return make(ExpressionKind::kItem, at,
                    {object, constant(Value::integer(token.integer), at)});
      }
      if (token.kind != TokenKind::kName) fail_syntax(token.line, "expected a name or a number");
      Expression* made = make(ExpressionKind::kAttribute, at, {object});
      made->text = token.text;
      return made;
    }
    expect("[");
    std::vector<Expression*> keys;
    while (!current().is("]")) {
      if (!keys.empty()) expect(",");
      keys.push_back(parse_key(object));
    }
    next();
    if (keys.size() == 1) {
      if (keys[0]->kind == ExpressionKind::kSlice && keys[0]->operands[0] == object) {
        return keys[0];
      }
      return make(ExpressionKind::kItem, at, {object, keys[0]});
    }
    Expression* tuple = make(ExpressionKind::kTuple, at);
    for (const Expression* key : keys) {
      if (key->kind == ExpressionKind::kSlice && key->operands[0] == object) {
        fail_unsupported(at, "several slices in one subscript");
      }
      add(tuple, key);
    }
    return make(ExpressionKind::kItem, at, {object, tuple});
  }

  // A subscript; a slice comes with its object.
  Expression* parse_key(Expression* object) {
    const int32_t at = line();
    const auto ends = [&] { return current().is(":") || current().is("]") || current().is(","); };
    Expression* start = current().is(":") ? nullptr : parse_expression();
    if (!current().is(":")) return start;
    next();
    Expression* stop = ends() ? nullptr : parse_expression();
    Expression* step = nullptr;
    if (skip_if(":") && !ends()) step = parse_expression();
    return make(ExpressionKind::kSlice, at, {object, start, stop, step});
  }

  Expression* parse_call(Expression* callee) {
    Expression* made = make(ExpressionKind::kCall, line(), {callee});
    parse_arguments(made);
    return made;
  }

  void parse_arguments(Expression* call) {
    const Deeper deeper(this);
    const int32_t at = line();
    const auto ensure = [&](bool holds) {
      if (!holds) fail_syntax(at, "the arguments of a call are in the wrong order");
    };
    const auto deepen = [&](const Expression* argument) {
      call->depth = std::max(call->depth, argument->depth + 1);
      return argument;
    };
    expect("(");
    bool first = true;
    while (!current().is(")")) {
      if (!first) {
        expect(",");
        if (current().is(")")) break;
      }
      first = false;
      if (skip_if("*")) {
        ensure(call->star == nullptr && call->double_star == nullptr);
        call->star = deepen(parse_expression());
      } else if (skip_if("**")) {
        ensure(call->double_star == nullptr);
        call->double_star = deepen(parse_expression());
      } else if (current().kind == TokenKind::kName && ahead().is("=")) {
        ensure(call->double_star == nullptr);
        std::string key = next().text;
        next();
        for (const auto& known : call->keywords) {
          if (known.first == key) fail_syntax(at, "the argument '" + key + "' is given twice");
        }
        call->keywords.emplace_back(std::move(key), deepen(parse_expression()));
      } else {
        ensure(call->star == nullptr && call->double_star == nullptr && call->keywords.empty());
        add(call, parse_expression());
      }
    }
    next();
  }

  std::string dotted_name() {
    std::string text = take_name();
    while (skip_if(".")) text += "." + take_name();
    return text;
  }

  Expression* parse_filter(Expression* operand) {
    const int32_t at = line();
    Expression* made = make(ExpressionKind::kFilter, at, {operand});
    made->text = dotted_name();
    made->filter = find_filter(made->text);
    for (const char* known : {"filesizeformat", "groupby", "pprint", "random", "striptags",
                              "urlencode", "urlize", "wordwrap", "xmlattr"}) {
      if (made->text == known) fail_unsupported(at, "the filter '" + made->text + "'");
    }
    if (current().is("(")) parse_arguments(made);
    return made;
  }

  Expression* parse_filters(Expression* operand) {
    while (skip_if("|")) operand = parse_filter(operand);
    return operand;
  }

  Expression* parse_test(Expression* operand) {
    const int32_t at = next().line;
    const bool negated = skip_if_name("not");
    Expression* made = make(ExpressionKind::kTest, at, {operand});
    made->text = dotted_name();
    made->test = find_test(made->text);
    const Token& token = current();
    const bool value_follows = token.kind == TokenKind::kName || token.kind == TokenKind::kString ||
                               token.kind == TokenKind::kInteger ||
                               token.kind == TokenKind::kFloat || token.is("[") || token.is("{");
    if (token.is("(")) {
      parse_arguments(made);
    } else if (value_follows && !token.is_name("else") && !token.is_name("or") &&
               !token.is_name("and")) {
      if (token.is_name("is")) fail_syntax(token.line, "tests cannot be chained");
      add(made, parse_postfix(parse_primary()));
    }
    return negated ? make(ExpressionKind::kNot, at, {made}) : made;
  }

  Expression* parse_filters_and_tests(Expression* made) {
    while (true) {
      if (skip_if("|")) {
        made = parse_filter(made);
      } else if (current().is_name("is")) {
        made = parse_test(made);
      } else if (current().is("(")) {
        made = parse_call(made);
      } else {
        return made;
      }
    }
  }

  // ---- unknown filters and tests ----
  // They are errors at once, unless a condition stands before them: then Jinja complains only when
  // one is reached.
  void check(const Expression* made, bool soft) const {
    if (made == nullptr) return;
    soft = soft || made->kind == ExpressionKind::kConditional;
    if (made->kind == ExpressionKind::kFilter && made->filter == nullptr && !soft) {
      fail_syntax(made->line, "there is no filter '" + made->text + "'");
    }
    if (made->kind == ExpressionKind::kTest && made->test == nullptr && !soft) {
      fail_syntax(made->line, "there is no test '" + made->text + "'");
    }
    for (const Expression* operand : made->operands) check(operand, soft);
    for (const auto& keyword : made->keywords) check(keyword.second, soft);
    check(made->star, soft);
    check(made->double_star, soft);
  }

  void check(const Body& body, bool soft) const {
    for (const Statement* statement : body) {
      const StatementKind kind = statement->kind;
      const bool condition = kind == StatementKind::kIf;
      const bool own_scope =
          kind == StatementKind::kSetBlock || kind == StatementKind::kFilterBlock;
      check(statement->value, soft && !own_scope);
      check(statement->test, false);
      const bool macro = kind == StatementKind::kMacro || kind == StatementKind::kCallBlock;
      for (const Expression* value : statement->values) check(value, condition || (soft && !macro));
      for (const Body& inner : statement->bodies) check(inner, condition);
    }
  }

  std::vector<Token> tokens_;
  size_t at_ = 0;
  Template result_;
  int depth_ = 0;
  int loops_ = 0;                   // around this place
  bool in_loop_ = false;            // "break" may stand here
  std::vector<Statement*> macros_;  // around this place
};

}  // namespace

Template parse(std::string_view source) { return Parser(source).run(); }

}  // namespace mlcb::jinja
