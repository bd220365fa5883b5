#include "grammar/pattern_reader.h"

#include "core/utf8.h"
#include "grammar/expr.h"
#include "grammar/grammar_error.h"

namespace mlcb {

PatternReader::PatternReader(std::string_view text, std::string where) : where_(std::move(where)) {
  if (text.size() > kMaxGrammarText) {
    fail_grammar(where_ + ": longer than " + std::to_string(kMaxGrammarText) + " bytes");
  }
  const char* p = text.data();
  const char* end = p + text.size();
  chars_.reserve(text.size());
  while (p != end) {
    const Utf8Char c = utf8_decode(p, end);
    if (c.size == 0) {
      fail_grammar(where_ + ": byte " + std::to_string(p - text.data()) + ": invalid UTF-8");
    }
    chars_.push_back(c.code);
    p += c.size;
  }
}

void PatternReader::fail(const std::string& what) const {
  size_t line = 1, column = 1;
  for (size_t i = 0; i < at_ && i < chars_.size(); ++i) {
    ++column;
    if (chars_[i] == '\n') {
      ++line;
      column = 1;
    }
  }
  fail_grammar(where_ + ": line " + std::to_string(line) + ", column " + std::to_string(column) +
               ": " + what);
}

uint32_t PatternReader::get_hex(int digits) {
  uint32_t value = 0;
  for (int i = 0; i < digits; ++i, ++at_) {
    const uint32_t c = peek();
    if (is_digit(c)) {
      value = value * 16 + (c - '0');
    } else if (c < 128 && (c | 32) >= 'a' && (c | 32) <= 'f') {
      value = value * 16 + ((c | 32) - 'a' + 10);
    } else {
      fail("the escape needs " + std::to_string(digits) + " hexadecimal digits");
    }
  }
  return value;
}

bool PatternReader::get_number(uint32_t* value) {
  if (!is_digit(peek())) return false;
  uint64_t number = 0;
  for (; is_digit(peek()); ++at_) {
    number = number * 10 + (peek() - '0');
    if (number > kMaxGrammarRepeat) {
      fail("a repetition of more than " + std::to_string(kMaxGrammarRepeat));
    }
  }
  *value = static_cast<uint32_t>(number);
  return true;
}

bool PatternReader::get_bounds(uint32_t* min, uint32_t* max) {
  const size_t start = at_;
  ++at_;
  *min = 0;
  const bool has_min = get_number(min);
  bool has_max = false;
  if (take(',')) {
    has_max = get_number(max);
    if (!has_max) *max = kUnlimited;
  } else {
    *max = *min;
  }
  if ((!has_min && !has_max) || !take('}')) {
    at_ = start;
    return false;
  }
  if (*max < *min) fail("a repetition with its bounds in the wrong order");
  return true;
}

bool PatternReader::get_repeat(uint32_t* min, uint32_t* max) {
  *min = next_is('+') ? 1 : 0;
  *max = next_is('?') ? 1 : kUnlimited;
  if (take('*') || take('+') || take('?')) return true;
  return next_is('{') && get_bounds(min, max);
}

}  // namespace mlcb
