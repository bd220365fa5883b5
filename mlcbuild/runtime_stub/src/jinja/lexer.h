// A template's text as tokens.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace mlcb::jinja {

enum class TokenKind : uint8_t {
  kData,
  kVariableBegin,
  kVariableEnd,
  kBlockBegin,
  kBlockEnd,
  kName,
  kString,
  kInteger,
  kFloat,
  kOperator,  // text holds it
  kEnd,
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  int32_t line = 1;
  std::string text;  // data, name, string (unescaped), operator, digits of an integer too large
  int64_t integer = 0;
  double real = 0;

  bool is(std::string_view op) const { return kind == TokenKind::kOperator && text == op; }
  bool is_name(std::string_view name) const { return kind == TokenKind::kName && text == name; }
};

// With transformers' settings: trim_blocks, lstrip_blocks, no trailing newline. Throws
// Error(MLCB_ERROR_BUNDLE) naming the line.
std::vector<Token> tokenize(std::string_view source);

// Throws the error for a template that is not valid.
[[noreturn]] void fail_syntax(int32_t line, const std::string& why);

}  // namespace mlcb::jinja
