// A recursive-descent JSON reader. A tokenizer.json has some 10 MB in half a million strings, so
// strings are copied in runs and objects check their keys with a hash table.
#include "core/json.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <numeric>

#include "core/error.h"
#include "core/utf8.h"

namespace mlcb {
namespace {

constexpr int kMaxDepth = 128;

const char* kind_name(Json::Kind kind) {
  switch (kind) {
    case Json::Kind::kNull:
      return "null";
    case Json::Kind::kBool:
      return "a boolean";
    case Json::Kind::kNumber:
      return "a number";
    case Json::Kind::kString:
      return "a string";
    case Json::Kind::kArray:
      return "an array";
    case Json::Kind::kObject:
      return "an object";
  }
  return "?";
}

[[noreturn]] void throw_kind(const char* expected, Json::Kind found) {
  throw Error(MLCB_ERROR_BUNDLE,
              std::string("JSON: expected ") + expected + ", found " + kind_name(found));
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Index of a key that occurs earlier in the object too, or -1.
template <typename Members>
ptrdiff_t find_duplicate(const Members& members) {
  const size_t count = members.size();
  if (count <= 8) {
    for (size_t i = 1; i < count; ++i) {
      for (size_t j = 0; j < i; ++j) {
        if (members[i].first == members[j].first) return static_cast<ptrdiff_t>(i);
      }
    }
    return -1;
  }
  // An open-addressed table; keys that were chosen to collide (long probes) are sorted instead, so
  // that hostile input costs no quadratic time.
  constexpr size_t kMaxProbes = 64;
  size_t capacity = 16;
  while (capacity < count * 2) capacity *= 2;
  std::vector<uint32_t> table(capacity, 0);
  bool collided = false;
  for (size_t i = 0; i < count && !collided; ++i) {
    const std::string& key = members[i].first;
    uint64_t hash = std::hash<std::string_view>()(key);
    hash *= 0x9E3779B97F4A7C15u;  // Fibonacci hashing: the top bits depend on every bit
    size_t slot = static_cast<size_t>(hash >> 20) & (capacity - 1);
    size_t probes = 0;
    for (; table[slot] != 0; slot = (slot + 1) & (capacity - 1)) {
      if (members[table[slot] - 1].first == key) return static_cast<ptrdiff_t>(i);
      if (++probes > kMaxProbes) {
        collided = true;
        break;
      }
    }
    if (!collided) table[slot] = static_cast<uint32_t>(i + 1);
  }
  if (!collided) return -1;
  std::vector<uint32_t> order(count);
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    const int compared = members[a].first.compare(members[b].first);
    return compared != 0 ? compared < 0 : a < b;
  });
  for (size_t i = 1; i < count; ++i) {
    if (members[order[i]].first == members[order[i - 1]].first) {
      return static_cast<ptrdiff_t>(order[i]);
    }
  }
  return -1;
}

}  // namespace

class JsonParser {
 public:
  JsonParser(std::string_view text, const std::string& where)
      : begin_(text.data()), p_(text.data()), end_(text.data() + text.size()), where_(where) {}

  Json parse_document() {
    Json value;
    skip_space();
    parse_value(&value, 0);
    skip_space();
    if (p_ != end_) fail("characters after the end of the document");
    return value;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw Error(MLCB_ERROR_BUNDLE,
                where_ + ": byte " + std::to_string(p_ - begin_) + ": invalid JSON: " + what);
  }

  void skip_space() {
    while (p_ != end_ && (*p_ == ' ' || *p_ == '\n' || *p_ == '\r' || *p_ == '\t')) ++p_;
  }

  void parse_value(Json* out, int depth) {
    if (p_ == end_) fail("unexpected end, a value is missing");
    switch (*p_) {
      case '{':
        return parse_object(out, depth);
      case '[':
        return parse_array(out, depth);
      case '"':
        parse_string(&out->value_.emplace<std::string>());
        return;
      case 't':
        parse_word("true");
        out->value_ = true;
        return;
      case 'f':
        parse_word("false");
        out->value_ = false;
        return;
      case 'n':
        parse_word("null");
        return;
      default:
        if (*p_ != '-' && !is_digit(*p_)) fail("expected a value");
        out->value_ = parse_number();
    }
  }

  void parse_word(std::string_view word) {
    if (static_cast<size_t>(end_ - p_) < word.size() ||
        std::memcmp(p_, word.data(), word.size()) != 0) {
      fail("expected a value");
    }
    p_ += word.size();
  }

  void enter(int depth) const {
    if (depth >= kMaxDepth) fail("nested deeper than " + std::to_string(kMaxDepth));
  }

  void parse_array(Json* out, int depth) {
    enter(depth);
    ++p_;
    auto& items = out->value_.emplace<Json::Array>();
    skip_space();
    if (p_ != end_ && *p_ == ']') {
      ++p_;
      return;
    }
    for (;;) {
      skip_space();
      parse_value(&items.emplace_back(), depth + 1);
      skip_space();
      if (p_ == end_) fail("unexpected end inside an array");
      const char c = *p_;
      if (c != ',' && c != ']') fail("expected ',' or ']'");
      ++p_;
      if (c == ']') break;
    }
    // Long-lived arrays of a hundred thousand entries are common; short ones are not worth a copy.
    if (items.capacity() - items.size() > 1024) items.shrink_to_fit();
  }

  void parse_object(Json* out, int depth) {
    enter(depth);
    ++p_;
    auto& members = out->value_.emplace<Json::Object>();
    skip_space();
    if (p_ != end_ && *p_ == '}') {
      ++p_;
      return;
    }
    for (;;) {
      skip_space();
      if (p_ == end_ || *p_ != '"') fail("expected a key in double quotes");
      auto& member = members.emplace_back();
      parse_string(&member.first);
      skip_space();
      if (p_ == end_ || *p_ != ':') fail("expected ':'");
      ++p_;
      skip_space();
      parse_value(&member.second, depth + 1);
      skip_space();
      if (p_ == end_) fail("unexpected end inside an object");
      const char c = *p_;
      if (c != ',' && c != '}') fail("expected ',' or '}'");
      ++p_;
      if (c == '}') break;
    }
    const ptrdiff_t duplicate = find_duplicate(members);
    if (duplicate >= 0) {
      fail("key " + json_quote(members[static_cast<size_t>(duplicate)].first) +
           " occurs twice in the object that ends here");
    }
  }

  uint32_t parse_hex4() {
    if (end_ - p_ < 4) fail("unexpected end in a \\u escape");
    uint32_t code = 0;
    for (int i = 0; i < 4; ++i) {
      const char c = p_[i];
      uint32_t digit = 0;
      if (is_digit(c)) {
        digit = static_cast<uint32_t>(c - '0');
      } else if (c >= 'a' && c <= 'f') {
        digit = static_cast<uint32_t>(c - 'a' + 10);
      } else if (c >= 'A' && c <= 'F') {
        digit = static_cast<uint32_t>(c - 'A' + 10);
      } else {
        fail("a \\u escape needs four hexadecimal digits");
      }
      code = code << 4 | digit;
    }
    p_ += 4;
    return code;
  }

  void parse_escape(std::string* out) {
    if (++p_ == end_) fail("unexpected end inside a string");
    const char c = *p_;
    switch (c) {
      case '"':
      case '\\':
      case '/':
        out->push_back(c);
        break;
      case 'b':
        out->push_back('\b');
        break;
      case 'f':
        out->push_back('\f');
        break;
      case 'n':
        out->push_back('\n');
        break;
      case 'r':
        out->push_back('\r');
        break;
      case 't':
        out->push_back('\t');
        break;
      case 'u': {
        ++p_;
        uint32_t code = parse_hex4();
        if (code >= 0xD800 && code <= 0xDBFF) {
          if (end_ - p_ < 2 || p_[0] != '\\' || p_[1] != 'u') fail("a lone surrogate");
          p_ += 2;
          const uint32_t low = parse_hex4();
          if (low < 0xDC00 || low > 0xDFFF) fail("a lone surrogate");
          code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
        } else if (code >= 0xDC00 && code <= 0xDFFF) {
          fail("a lone surrogate");
        }
        utf8_append(code, out);
        return;
      }
      default:
        fail("unknown escape");
    }
    ++p_;
  }

  void parse_string(std::string* out) {
    ++p_;  // the opening quote
    for (;;) {
      const char* run = p_;
      while (p_ != end_) {
        const uint8_t c = static_cast<uint8_t>(*p_);
        if (c == '"' || c == '\\' || c < 0x20) break;
        if (c < 0x80) {
          ++p_;
          continue;
        }
        const Utf8Char decoded = utf8_decode(p_, end_);
        if (decoded.size == 0) fail("invalid UTF-8");
        p_ += decoded.size;
      }
      out->append(run, static_cast<size_t>(p_ - run));
      if (p_ == end_) fail("unexpected end inside a string");
      if (*p_ == '"') break;
      if (*p_ != '\\') fail("a control character inside a string");
      parse_escape(out);
    }
    ++p_;
  }

  double parse_number() {
    const char* start = p_;
    const bool negative = *p_ == '-';
    if (negative) ++p_;
    if (p_ == end_ || !is_digit(*p_)) fail("a number needs a digit here");
    std::string digits;  // the significant digits, without the point
    int64_t exponent = 0;
    auto take_digits = [&] {
      const char* run = p_;
      while (p_ != end_ && is_digit(*p_)) ++p_;
      digits.append(run, static_cast<size_t>(p_ - run));
      return p_ - run;
    };
    if (*p_ == '0') {
      digits.push_back(*p_++);
      if (p_ != end_ && is_digit(*p_)) fail("a number must not start with 0");
    } else {
      take_digits();
    }
    if (p_ != end_ && *p_ == '.') {
      ++p_;
      const ptrdiff_t count = take_digits();
      if (count == 0) fail("a number needs a digit after the point");
      exponent -= count;
    }
    if (p_ != end_ && (*p_ == 'e' || *p_ == 'E')) {
      ++p_;
      bool negative_exponent = false;
      if (p_ != end_ && (*p_ == '+' || *p_ == '-')) negative_exponent = *p_++ == '-';
      if (p_ == end_ || !is_digit(*p_)) fail("a number needs a digit in its exponent");
      int64_t value = 0;
      for (; p_ != end_ && is_digit(*p_); ++p_) {
        // Far beyond any double, and short of overflow together with the digits' count.
        value = std::min<int64_t>(value * 10 + (*p_ - '0'), int64_t{1} << 40);
      }
      exponent += negative_exponent ? -value : value;
    }
    double result = 0;
    if (digits.size() <= 15 && exponent == 0) {
      int64_t integer = 0;
      for (char c : digits) integer = integer * 10 + (c - '0');
      result = static_cast<double>(integer);
    } else {
      // strtod wants the locale's decimal point; an exponent instead of a point avoids it.
      digits += "e" + std::to_string(exponent);
      result = std::strtod(digits.c_str(), nullptr);
    }
    if (!std::isfinite(result)) {
      p_ = start;
      fail("a number beyond the range of a double");
    }
    return negative ? -result : result;
  }

  const char* begin_;
  const char* p_;
  const char* end_;
  const std::string& where_;
};

Json Json::parse(std::string_view text, const std::string& where) {
  return JsonParser(text, where).parse_document();
}

bool Json::as_bool() const {
  if (!is_bool()) throw_kind("a boolean", kind());
  return std::get<bool>(value_);
}

double Json::as_double() const {
  if (!is_number()) throw_kind("a number", kind());
  return std::get<double>(value_);
}

int64_t Json::as_int() const {
  if (!is_number()) throw_kind("an integer", kind());
  const double value = std::get<double>(value_);
  constexpr double kLimit = 9007199254740992.0;  // 2^53
  if (value != std::floor(value) || value < -kLimit || value > kLimit) {
    throw Error(MLCB_ERROR_BUNDLE,
                "JSON: expected an integer of at most 53 bits, found " + std::to_string(value));
  }
  return static_cast<int64_t>(value);
}

const std::string& Json::as_string() const {
  if (!is_string()) throw_kind("a string", kind());
  return std::get<std::string>(value_);
}

const std::vector<Json>& Json::items() const {
  if (!is_array()) throw_kind("an array", kind());
  return std::get<Array>(value_);
}

const std::vector<std::pair<std::string, Json>>& Json::members() const {
  if (!is_object()) throw_kind("an object", kind());
  return std::get<Object>(value_);
}

const Json* Json::find(std::string_view key) const {
  if (!is_object()) return nullptr;
  for (const auto& member : std::get<Object>(value_)) {
    if (member.first == key) return &member.second;
  }
  return nullptr;
}

const Json& Json::at(std::string_view key) const {
  if (!is_object()) throw_kind("an object", kind());
  if (const Json* value = find(key)) return *value;
  throw Error(MLCB_ERROR_BUNDLE, "JSON: key " + json_quote(key) + " is missing");
}

size_t Json::size() const {
  if (is_array()) return std::get<Array>(value_).size();
  if (is_object()) return std::get<Object>(value_).size();
  throw_kind("an array or an object", kind());
}

std::string json_quote(std::string_view text) {
  static const char kHex[] = "0123456789abcdef";
  std::string out;
  out.reserve(text.size() + 2);
  out.push_back('"');
  const char* p = text.data();
  const char* end = p + text.size();
  while (p != end) {
    const uint8_t c = static_cast<uint8_t>(*p);
    if (c >= 0x80) {
      const Utf8Char decoded = utf8_decode(p, end);
      if (decoded.size == 0) {
        utf8_append(0xFFFD, &out);
        p += decoded.bad_size;
      } else {
        out.append(p, decoded.size);
        p += decoded.size;
      }
      continue;
    }
    ++p;
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\b':
        out += "\\b";
        break;
      case '\f':
        out += "\\f";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      default:
        if (c < 0x20) {
          out += "\\u00";
          out.push_back(kHex[c >> 4]);
          out.push_back(kHex[c & 15]);
        } else {
          out.push_back(static_cast<char>(c));
        }
    }
  }
  out.push_back('"');
  return out;
}

}  // namespace mlcb
