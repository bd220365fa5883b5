#include "jinja/json_text.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "core/error.h"
#include "core/utf8.h"
#include "jinja/python.h"
#include "jinja/python_text.h"

namespace mlcb::jinja {
namespace {

constexpr int kMaxJsonDepth = 128;
constexpr size_t kMaxJsonText = size_t{64} << 20;

class JsonParser {
 public:
  JsonParser(Heap& heap, std::string_view text, const char* where)
      : heap_(heap), text_(text), where_(where) {}

  Value run() {
    skip_space();
    Value value = parse(0);
    skip_space();
    if (at_ != text_.size()) refuse("text follows the value");
    return value;
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    throw Error(MLCB_ERROR_ARGUMENT, std::string(where_) + ": byte " + std::to_string(at_) +
                                         " is not valid JSON: " + what);
  }

  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }

  void skip_space() {
    while (at_ < text_.size() &&
           std::string_view(" \t\n\r").find(text_[at_]) != std::string::npos) {
      ++at_;
    }
  }

  bool take(char c) {
    skip_space();
    if (peek() != c || at_ == text_.size()) return false;
    ++at_;
    return true;
  }

  bool take_word(std::string_view word) {
    if (text_.substr(at_, word.size()) != word) return false;
    at_ += word.size();
    return true;
  }

  Value parse(int depth) {
    if (depth > kMaxJsonDepth) refuse("it is nested too deeply");
    heap_.work(1);
    switch (peek()) {
      case '{':
        return parse_object(depth);
      case '[':
        return parse_array(depth);
      case '"':
        return heap_.string(parse_string());
      case 't':
        if (take_word("true")) return Value::boolean(true);
        break;
      case 'f':
        if (take_word("false")) return Value::boolean(false);
        break;
      case 'n':
        if (take_word("null")) return Value::none();
        break;
      default:
        if (peek() == '-' || (peek() >= '0' && peek() <= '9')) return parse_number();
    }
    refuse("a value is expected");
  }

  Value parse_array(int depth) {
    std::vector<Value> items;
    ++at_;
    if (take(']')) return heap_.list({});
    do {
      skip_space();
      items.push_back(parse(depth + 1));
    } while (take(','));
    if (!take(']')) refuse("',' or ']' is expected");
    return heap_.list(std::move(items));
  }

  Value parse_object(int depth) {
    std::vector<std::pair<Value, Value>> items;
    ++at_;
    if (take('}')) return heap_.dict({});
    do {
      skip_space();
      if (peek() != '"') refuse("a key is expected");
      Value key = heap_.string(parse_string());
      if (!take(':')) refuse("':' is expected");
      skip_space();
      items.emplace_back(std::move(key), parse(depth + 1));
    } while (take(','));
    if (!take('}')) refuse("',' or '}' is expected");
    require_unique(items);
    return heap_.dict(std::move(items));
  }

  void require_unique(const std::vector<std::pair<Value, Value>>& items) const {
    std::vector<std::string_view> keys;
    for (const auto& item : items) keys.emplace_back(item.first.text());
    std::sort(keys.begin(), keys.end());
    const auto twice = std::adjacent_find(keys.begin(), keys.end());
    if (twice != keys.end()) refuse("the key \"" + std::string(*twice) + "\" is given twice");
  }

  uint32_t parse_hex() {
    uint32_t code = 0;
    for (int i = 0; i < 4; ++i, ++at_) {
      const char c = peek();
      const int digit = c >= '0' && c <= '9'                     ? c - '0'
                        : (c | 0x20) >= 'a' && (c | 0x20) <= 'f' ? (c | 0x20) - 'a' + 10
                                                                 : -1;
      if (digit < 0) refuse("a hexadecimal digit is expected");
      code = code * 16 + static_cast<uint32_t>(digit);
    }
    return code;
  }

  std::string parse_string() {
    std::string out;
    ++at_;
    while (true) {
      if (at_ == text_.size()) refuse("a text has no end");
      const char c = text_[at_];
      if (c == '"') break;
      if (static_cast<uint8_t>(c) < 0x20) refuse("a control character stands in a text");
      if (c != '\\') {
        const Utf8Char decoded = utf8_decode(text_.data() + at_, text_.data() + text_.size());
        if (decoded.size == 0) refuse("it is not UTF-8");
        out.append(text_.substr(at_, decoded.size));
        at_ += decoded.size;
        continue;
      }
      ++at_;
      const char escape = peek();
      ++at_;
      static const char kFrom[] = "\"\\/bfnrt";
      static const char kTo[] = "\"\\/\b\f\n\r\t";
      const size_t known = std::string_view(kFrom).find(escape);
      if (known != std::string_view::npos) {
        out.push_back(kTo[known]);
      } else if (escape == 'u') {
        uint32_t code = parse_hex();
        if (code >= 0xD800 && code < 0xDC00 && take_word("\\u")) {
          const uint32_t low = parse_hex();
          if (low < 0xDC00 || low > 0xDFFF) refuse("half of a character stands alone");
          code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
        }
        if (code >= 0xD800 && code <= 0xDFFF) refuse("half of a character stands alone");
        utf8_append(code, &out);
      } else {
        --at_;
        refuse("an unknown escape");
      }
    }
    ++at_;
    return out;
  }

  size_t digits() {
    const size_t start = at_;
    while (peek() >= '0' && peek() <= '9') ++at_;
    return at_ - start;
  }

  Value parse_number() {
    const size_t start = at_;
    if (peek() == '-') ++at_;
    const bool zero = peek() == '0';
    const size_t count = digits();
    if (count == 0) refuse("a digit is expected");
    if (zero && count > 1) refuse("a number starts with zero");
    bool real = false;
    if (peek() == '.') {
      ++at_;
      if (digits() == 0) refuse("a digit is expected");
      real = true;
    }
    if ((peek() | 0x20) == 'e') {
      ++at_;
      if (peek() == '+' || peek() == '-') ++at_;
      if (digits() == 0) refuse("a digit is expected");
      real = true;
    }
    const std::string_view number = text_.substr(start, at_ - start);
    if (real) {
      double value = 0;
      parse_real(number, &value);
      if (!std::isfinite(value)) refuse("a number is too large");
      return Value::real(value);
    }
    if (count < 19) {
      int64_t value = 0;
      parse_integer(number, 10, &value);
      return Value::integer(value);
    }
    if (count > 400) refuse("a number is too large");
    Value value = heap_.string(std::string(number));
    int64_t integer = 0;
    bool fits = true;
    try {
      parse_integer(number, 10, &integer);
    } catch (const Error&) {
      fits = false;
    }
    return fits ? Value::integer(integer) : Value::object(Kind::kBigInt, &value.string());
  }

  Heap& heap_;
  std::string_view text_;
  const char* where_;
  size_t at_ = 0;
};

void append_string(std::string_view text, bool ascii, std::string* out) {
  char buffer[16];
  out->push_back('"');
  const char* end = text.data() + text.size();
  for (const char* p = text.data(); p != end;) {
    const uint8_t c = static_cast<uint8_t>(*p);
    if (c >= 0x80) {
      const Utf8Char decoded = utf8_decode(p, end);
      const uint32_t size = decoded.size != 0 ? decoded.size : decoded.bad_size;
      if (!ascii) {
        out->append(p, size);
      } else if (decoded.code < 0x10000) {
        std::snprintf(buffer, sizeof(buffer), "\\u%04x", decoded.code);
        *out += buffer;
      } else {
        const uint32_t rest = decoded.code - 0x10000;
        std::snprintf(buffer, sizeof(buffer), "\\u%04x\\u%04x", 0xD800 + (rest >> 10),
                      0xDC00 + (rest & 0x3FF));
        *out += buffer;
      }
      p += size;
      continue;
    }
    ++p;
    static const char kFrom[] = "\"\\\n\r\t\f\b";
    static const char kTo[] = "\"\\nrtfb";
    const size_t known = std::string_view(kFrom).find(static_cast<char>(c));
    if (known != std::string_view::npos) {
      out->push_back('\\');
      out->push_back(kTo[known]);
    } else if (c < 0x20 || (ascii && c == 0x7F)) {
      std::snprintf(buffer, sizeof(buffer), "\\u%04x", c);
      *out += buffer;
    } else {
      out->push_back(static_cast<char>(c));
    }
  }
  out->push_back('"');
}

std::string real_text(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value < 0 ? "-Infinity" : "Infinity";
  return float_repr(value);
}

class Writer {
 public:
  explicit Writer(const JsonStyle& style) : style_(style) {}

  void write(const Value& value, int depth) {
    if (depth > kMaxJsonDepth) fail("values are nested too deeply");
    if (out.size() > kMaxJsonText) fail("a value is too large to be written");
    switch (value.kind()) {
      case Kind::kNone:
        out += "null";
        return;
      case Kind::kBool:
        out += value.as_bool() ? "true" : "false";
        return;
      case Kind::kInt:
        out += std::to_string(value.as_int());
        return;
      case Kind::kBigInt:
        out += value.text();
        return;
      case Kind::kFloat:
        out += real_text(value.as_real());
        return;
      case Kind::kString:
        append_string(value.text(), style_.ascii, &out);
        return;
      case Kind::kDict:
        write_dict(value.dict(), depth);
        return;
      case Kind::kSequence:
        if (value.sequence().flavor <= Flavor::kTuple) {
          write_list(value.sequence().items, depth);
          return;
        }
        break;
      default:
        break;
    }
    fail(std::string(type_name(value)) + " cannot be written as JSON");
  }

  std::string out;

 private:
  void new_line(int depth) {
    if (!style_.indented) return;
    out += '\n';
    for (int i = 0; i < depth; ++i) out += style_.indent;
  }

  void write_list(const std::vector<Value>& items, int depth) {
    if (items.empty()) {
      out += "[]";
      return;
    }
    out += '[';
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) out += style_.item_separator;
      new_line(depth + 1);
      write(items[i], depth + 1);
    }
    new_line(depth);
    out += ']';
  }

  void write_key(const Value& key) {
    std::string text;
    switch (key.kind()) {
      case Kind::kString:
        text = key.text();
        break;
      case Kind::kNone:
        text = "null";
        break;
      case Kind::kBool:
        text = key.as_bool() ? "true" : "false";
        break;
      case Kind::kInt:
        text = std::to_string(key.as_int());
        break;
      case Kind::kFloat:
        text = real_text(key.as_real());
        break;
      default:
        fail(std::string(type_name(key)) + " cannot be a key in JSON");
    }
    append_string(text, style_.ascii, &out);
  }

  void write_dict(const DictObject& dict, int depth) {
    if (dict.items.empty()) {
      out += "{}";
      return;
    }
    std::vector<const std::pair<Value, Value>*> items;
    for (const auto& item : dict.items) items.push_back(&item);
    if (style_.sort_keys) {
      std::stable_sort(items.begin(), items.end(), [](const auto* a, const auto* b) {
        return compare(a->first, b->first, Operator::kLess) < 0;
      });
    }
    out += '{';
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) out += style_.item_separator;
      new_line(depth + 1);
      write_key(items[i]->first);
      out += style_.key_separator;
      write(items[i]->second, depth + 1);
    }
    new_line(depth);
    out += '}';
  }

  const JsonStyle& style_;
};

}  // namespace

Value parse_json(Heap& heap, std::string_view text, const char* where) {
  return JsonParser(heap, text, where).run();
}

std::string dump_json(const Value& value, const JsonStyle& style) {
  Writer writer(style);
  writer.write(value, 0);
  return std::move(writer.out);
}

}  // namespace mlcb::jinja
