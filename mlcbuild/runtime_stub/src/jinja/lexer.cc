#include "jinja/lexer.h"

#include <algorithm>
#include <cstdio>

#include "core/error.h"
#include "core/utf8.h"
#include "jinja/python_text.h"
#include "text/unicode.h"

namespace mlcb::jinja {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Bytes of the character of a name that text starts with; 0 if it is none.
size_t name_char(std::string_view text) {
  if (text.empty()) return 0;
  const char c = text[0];
  if (static_cast<uint8_t>(c) < 0x80) {
    return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ? 1 : 0;
  }
  const Utf8Char decoded = utf8_decode(text.data(), text.data() + text.size());
  return unicode_is_word(decoded.code) ? decoded.size : 0;
}

bool is_valid_utf8(std::string_view text) {
  const char* end = text.data() + text.size();
  for (const char* p = text.data(); p != end;) {
    const Utf8Char c = utf8_decode(p, end);
    if (c.size == 0) return false;
    p += c.size;
  }
  return true;
}

// All line ends as "\n", and the last one left out.
std::string normalize(std::string_view source) {
  std::string text;
  text.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      text.push_back('\n');
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      text.push_back(source[i]);
    }
  }
  if (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

class Lexer {
 public:
  explicit Lexer(std::string source) : source_(std::move(source)) {}

  std::vector<Token> run() {
    while (at_ < source_.size()) data();
    push(TokenKind::kEnd);
    return std::move(tokens_);
  }

 private:
  std::string_view rest() const { return std::string_view(source_).substr(at_); }
  bool looking_at(std::string_view text) const { return rest().substr(0, text.size()) == text; }

  Token& push(TokenKind kind) {
    tokens_.emplace_back();
    tokens_.back().kind = kind;
    tokens_.back().line = line_;
    return tokens_.back();
  }

  void advance(size_t count) {
    line_ += static_cast<int32_t>(std::count(source_.begin() + static_cast<ptrdiff_t>(at_),
                                             source_.begin() + static_cast<ptrdiff_t>(at_ + count),
                                             '\n'));
    at_ += count;
    if (count > 0) line_starting_ = source_[at_ - 1] == '\n';
  }

  // Where the white space behind position from ends.
  size_t skip_space(size_t from) const {
    const std::string_view text = std::string_view(source_).substr(from);
    return from + (text.size() - strip(text, true, false).size());
  }

  // Pushes the text in front of a tag that starts with sign, stripped as the sign says.
  void push_data(std::string_view text, char sign, bool variable) {
    if (sign == '-') {
      text = strip(text, false, true);
    } else if (sign != '+' && !variable) {
      const size_t line_start = text.rfind('\n') + 1;  // 0 without one
      if ((line_start > 0 || line_starting_) &&
          strip(text.substr(line_start), true, false).empty()) {
        text = text.substr(0, line_start);
      }
    }
    if (!text.empty()) push(TokenKind::kData).text = text;
  }

  static char sign_at(std::string_view text, size_t at) {
    return at < text.size() && (text[at] == '-' || text[at] == '+') ? text[at] : '\0';
  }

  // Where a raw tag named `name` that starts at `at` ends; npos if it is none. Its sign goes to
  // *sign. trims: whether its end may have a "+" or take a line end along.
  size_t raw_tag(size_t at, std::string_view name, bool trims, char* sign) const {
    const std::string_view text = source_;
    if (text.substr(at, 2) != "{%") return std::string::npos;
    *sign = sign_at(text, at + 2);
    size_t p = skip_space(at + 2 + (*sign != '\0' ? 1 : 0));
    if (text.substr(p, name.size()) != name) return std::string::npos;
    p = skip_space(p + name.size());
    if (text.substr(p, 3) == "-%}") return skip_space(p + 3);
    if (trims && text.substr(p, 3) == "+%}") return p + 3;
    if (text.substr(p, 2) != "%}") return std::string::npos;
    p += 2;
    return trims && p < text.size() && text[p] == '\n' ? p + 1 : p;
  }

  // Text up to the next tag, and the tag.
  void data() {
    const std::string_view text = rest();
    size_t found = 0;
    while (true) {
      found = text.find('{', found);
      if (found == std::string_view::npos || found + 1 >= text.size()) {
        push(TokenKind::kData).text = text;
        at_ = source_.size();
        return;
      }
      const char next = text[found + 1];
      if (next == '{' || next == '%' || next == '#') break;
      ++found;
    }
    char sign = '\0';
    const size_t raw_end = raw_tag(at_ + found, "raw", false, &sign);
    if (raw_end != std::string::npos) {
      push_data(text.substr(0, found), sign, false);
      advance(raw_end - at_);
      raw();
      return;
    }
    const char kind = text[found + 1];
    sign = sign_at(text, found + 2);
    push_data(text.substr(0, found), sign, kind == '{');
    advance(found);
    const int32_t begin_line = line_;
    advance(sign != '\0' ? 3 : 2);
    if (kind == '#') {
      comment();
      return;
    }
    push(kind == '{' ? TokenKind::kVariableBegin : TokenKind::kBlockBegin).line = begin_line;
    code(kind == '{');
  }

  void raw() {
    for (size_t p = at_; (p = source_.find("{%", p)) != std::string::npos; ++p) {
      char sign = '\0';
      const size_t end = raw_tag(p, "endraw", true, &sign);
      if (end == std::string::npos) continue;
      push_data(rest().substr(0, p - at_), sign, false);
      advance(end - at_);
      return;
    }
    fail_syntax(line_, "a raw block has no end");
  }

  void comment() {
    const size_t end = source_.find("#}", at_);
    if (end == std::string::npos) fail_syntax(line_, "a comment has no end");
    size_t behind = end + 2;
    const char sign = end > at_ ? source_[end - 1] : '\0';
    if (sign == '-') {
      behind = skip_space(behind);
    } else if (sign != '+' && behind < source_.size() && source_[behind] == '\n') {
      ++behind;
    }
    advance(behind - at_);
  }

  // The end of a tag here, or 0; brackets must be closed.
  size_t tag_end(bool variable) const {
    if (!brackets_.empty()) return 0;
    const std::string_view close = variable ? "}}" : "%}";
    const std::string_view text = rest();
    if (text.substr(0, 2) == close) {
      return !variable && text.size() > 2 && text[2] == '\n' ? 3 : 2;
    }
    if (text.empty() || text.substr(1, 2) != close) return 0;
    if (text[0] == '-') return skip_space(at_ + 3) - at_;
    return text[0] == '+' && !variable ? 3 : 0;
  }

  // The inside of a tag, up to its end.
  void code(bool variable) {
    while (at_ < source_.size()) {
      if (const size_t size = tag_end(variable)) {
        push(variable ? TokenKind::kVariableEnd : TokenKind::kBlockEnd);
        advance(size);
        return;
      }
      const size_t behind = skip_space(at_);
      if (behind > at_) {
        advance(behind - at_);
      } else if (is_digit(source_[at_])) {
        number();
      } else if (size_t size = name_char(rest()); size > 0) {
        while (const size_t more = name_char(rest().substr(size))) size += more;
        push(TokenKind::kName).text = rest().substr(0, size);
        advance(size);
      } else if (source_[at_] == '"' || source_[at_] == '\'') {
        string();
      } else {
        op();
      }
    }
    // The parser says what is missing.
  }

  // Digits with single underscores between them: how many characters.
  size_t digits(size_t at) const {
    size_t p = at;
    while (p < source_.size() &&
           (is_digit(source_[p]) || (source_[p] == '_' && p > at && source_[p - 1] != '_' &&
                                     p + 1 < source_.size() && is_digit(source_[p + 1])))) {
      ++p;
    }
    return p - at;
  }

  void number() {
    const bool behind_dot = at_ > 0 && source_[at_ - 1] == '.';
    const size_t whole = digits(at_);
    size_t size = whole;
    if (!behind_dot) {
      if (at_ + size + 1 < source_.size() && source_[at_ + size] == '.') {
        const size_t fraction = digits(at_ + size + 1);
        if (fraction > 0) size += 1 + fraction;
      }
      if (at_ + size < source_.size() && (source_[at_ + size] | 0x20) == 'e') {
        size_t p = at_ + size + 1;
        if (p < source_.size() && (source_[p] == '+' || source_[p] == '-')) ++p;
        const size_t exponent = p < source_.size() ? digits(p) : 0;
        if (exponent > 0) size = p + exponent - at_;
      }
    }
    if (size > whole) {
      Token& token = push(TokenKind::kFloat);
      parse_real(rest().substr(0, size), &token.real);
      advance(size);
      return;
    }
    // An integer: hexadecimal and such, or decimal; a leading zero stands alone.
    const char letter = at_ + 1 < source_.size() ? static_cast<char>(source_[at_ + 1] | 0x20) : ' ';
    if (source_[at_] == '0' && (letter == 'x' || letter == 'o' || letter == 'b')) {
      const auto is_digit_of_base = [&](char c) {
        return letter == 'x'   ? is_digit(c) || ((c | 0x20) >= 'a' && (c | 0x20) <= 'f')
               : letter == 'o' ? c >= '0' && c <= '7'
                               : c == '0' || c == '1';
      };
      size_t p = at_ + 2;
      while (p < source_.size() &&
             (is_digit_of_base(source_[p]) ||
              (source_[p] == '_' && p + 1 < source_.size() && is_digit_of_base(source_[p + 1])))) {
        ++p;
      }
      size = p > at_ + 2 ? p - at_ : 1;
    } else if (source_[at_] == '0') {
      size = 1;
      while (size < whole && (source_[at_ + size] == '0' || source_[at_ + size] == '_')) ++size;
      if (source_[at_ + size - 1] == '_') --size;
    }
    Token& token = push(TokenKind::kInteger);
    try {
      parse_integer(rest().substr(0, size), 0, &token.integer);
    } catch (const Error& error) {
      fail_syntax(line_, error.what());
    }
    advance(size);
  }

  void op() {
    static const char* const kOperators[] = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/",
                                             "*",  "%",  "~",  "[",  "]",  "(",  ")", "{", "}",
                                             ">",  "<",  "=",  ".",  ":",  "|",  ",", ";"};
    for (const std::string_view text : kOperators) {
      if (!looking_at(text)) continue;
      const char c = text[0];
      if (c == '(' || c == '[' || c == '{') {
        brackets_.push_back(c == '(' ? ')' : c == '[' ? ']' : '}');
      } else if (c == ')' || c == ']' || c == '}') {
        if (brackets_.empty() || brackets_.back() != c) {
          fail_syntax(line_, "unexpected '" + std::string(text) + "'");
        }
        brackets_.pop_back();
      }
      push(TokenKind::kOperator).text = text;
      advance(text.size());
      return;
    }
    fail_syntax(line_,
                "unexpected character '" + std::string(characters(rest().substr(0, 4))[0]) + "'");
  }

  void string() {
    const char quote = source_[at_];
    size_t p = at_ + 1;
    while (p < source_.size() && source_[p] != quote) p += source_[p] == '\\' ? 2 : 1;
    if (p >= source_.size()) fail_syntax(line_, "a string has no end");
    push(TokenKind::kString).text = unescape(rest().substr(1, p - at_ - 1));
    advance(p + 1 - at_);
  }

  // A string's escapes, as in Python.
  std::string unescape(std::string_view text) const {
    std::string out;
    for (size_t i = 0; i < text.size();) {
      if (text[i] != '\\') {
        out.push_back(text[i++]);
        continue;
      }
      const char c = text[i + 1];  // there is one: see string()
      i += 2;
      static const char kFrom[] = "\\'\"abfnrtv\n";
      static const char kTo[] = "\\'\"\a\b\f\n\r\t\v";
      const size_t known = std::string_view(kFrom).find(c);
      if (known != std::string_view::npos) {
        if (c != '\n') out.push_back(kTo[known]);
      } else if (c >= '0' && c <= '7') {
        uint32_t code = static_cast<uint32_t>(c - '0');
        for (int n = 1; n < 3 && i < text.size() && text[i] >= '0' && text[i] <= '7'; ++n) {
          code = code * 8 + static_cast<uint32_t>(text[i++] - '0');
        }
        utf8_append(code, &out);
      } else if (c == 'x' || c == 'u' || c == 'U') {
        const size_t size = c == 'x' ? 2 : c == 'u' ? 4 : 8;
        uint32_t code = 0;
        for (size_t n = 0; n < size; ++n, ++i) {
          const char d = i < text.size() ? text[i] : ' ';
          const int digit = is_digit(d)                              ? d - '0'
                            : (d | 0x20) >= 'a' && (d | 0x20) <= 'f' ? (d | 0x20) - 'a' + 10
                                                                     : -1;
          if (digit < 0) fail_syntax(line_, "an escape of a string lacks hexadecimal digits");
          code = code * 16 + static_cast<uint32_t>(digit);
        }
        if (code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF)) {
          fail_syntax(line_, "an escape of a string names no character");
        }
        utf8_append(code, &out);
      } else if (c == 'N') {
        fail_syntax(line_, "characters by name (\\N) are not supported");
      } else {
        out.push_back('\\');
        if (static_cast<uint8_t>(c) < 0x80) {
          out.push_back(c);
          continue;
        }
        // Jinja turns it into an escape first, whose backslash this one then escapes.
        const Utf8Char decoded = utf8_decode(text.data() + i - 1, text.data() + text.size());
        char buffer[12];
        const char* format = decoded.code < 0x100     ? "x%02x"
                             : decoded.code < 0x10000 ? "u%04x"
                                                      : "U%08x";
        std::snprintf(buffer, sizeof(buffer), format, decoded.code);
        out += buffer;
        i += decoded.size - 1;
      }
    }
    return out;
  }

  std::string source_;
  size_t at_ = 0;
  int32_t line_ = 1;
  bool line_starting_ = true;  // nothing of the line comes before the text here
  std::string brackets_;       // that must be closed, as their closing ones
  std::vector<Token> tokens_;
};

}  // namespace

void fail_syntax(int32_t line, const std::string& why) {
  throw Error(MLCB_ERROR_BUNDLE, "the chat template is not valid Jinja\nwhy: line " +
                                     std::to_string(line) + ": " + why);
}

std::vector<Token> tokenize(std::string_view source) {
  if (!is_valid_utf8(source)) fail_syntax(1, "it is not UTF-8");
  return Lexer(normalize(source)).run();
}

}  // namespace mlcb::jinja
