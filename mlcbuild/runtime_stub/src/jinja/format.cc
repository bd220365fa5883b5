#include "jinja/format.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "core/utf8.h"
#include "jinja/builtins.h"
#include "jinja/python.h"
#include "jinja/python_text.h"

namespace mlcb::jinja {
namespace {

constexpr int64_t kMaxWidth = 1 << 20;
constexpr int64_t kMaxPrecision = 400;

// How one value is to be written; both notations come down to it.
struct Spec {
  std::string fill = " ";
  char align = '\0';  // '<', '>', '^' or '=' (between sign and digits)
  char sign = '-';
  bool alternate = false;
  char grouping = '\0';
  int64_t width = 0;
  int64_t precision = -1;
  char type = '\0';
};

std::string pad(const Spec& spec, const std::string& sign, const std::string& body, char usual) {
  const char align = spec.align != '\0' ? spec.align : usual;
  const int64_t missing = spec.width - character_count(sign) - character_count(body);
  if (missing <= 0) return sign + body;
  const int64_t left = align == '<' ? 0 : align == '^' ? missing / 2 : missing;
  std::string before, behind;
  for (int64_t i = 0; i < missing; ++i) (i < left ? before : behind) += spec.fill;
  return align == '=' ? sign + before + body : before + sign + body + behind;
}

std::string sign_of(bool negative, const Spec& spec) {
  if (negative) return "-";
  return spec.sign == '-' ? "" : std::string(1, spec.sign);
}

// Puts separators into the digits in front of a decimal point.
std::string group(const std::string& digits, const Spec& spec, size_t size) {
  if (spec.grouping == '\0') return digits;
  const size_t whole = std::min(digits.find_first_not_of("0123456789abcdefABCDEF"), digits.size());
  std::string out;
  for (size_t i = 0; i < whole; ++i) {
    if (i > 0 && (whole - i) % size == 0) out.push_back(spec.grouping);
    out.push_back(digits[i]);
  }
  return out + digits.substr(whole);
}

std::string format_integer(int64_t value, const Spec& spec) {
  const uint64_t base = spec.type == 'x' || spec.type == 'X' ? 16
                        : spec.type == 'o'                   ? 8
                        : spec.type == 'b'                   ? 2
                                                             : 10;
  const char* const characters = spec.type == 'X' ? "0123456789ABCDEF" : "0123456789abcdef";
  uint64_t rest = value < 0 ? ~static_cast<uint64_t>(value) + 1 : static_cast<uint64_t>(value);
  std::string digits;
  do {
    digits.push_back(characters[rest % base]);
    rest /= base;
  } while (rest != 0);
  if (spec.precision > static_cast<int64_t>(digits.size())) {
    digits.resize(static_cast<size_t>(spec.precision), '0');
  }
  std::reverse(digits.begin(), digits.end());
  std::string sign = sign_of(value < 0, spec);
  if (spec.alternate && base != 10) sign += std::string("0") + spec.type;
  return pad(spec, sign, group(digits, spec, base == 10 ? 3 : 4), '>');
}

std::string format_float(double value, const Spec& spec) {
  const bool negative = std::signbit(value) && !std::isnan(value);
  const double size = std::fabs(value);
  std::string body;
  const int precision = static_cast<int>(spec.precision);
  if (spec.type == '%') {
    body = format_real('f', precision < 0 ? 6 : precision, spec.alternate, size * 100) + "%";
  } else if (spec.type == '\0' && precision < 0) {
    body = float_repr(size);
  } else {
    const char type = spec.type == '\0' || spec.type == 'n' ? 'g' : spec.type;
    body = format_real(type, precision < 0 ? 6 : precision, spec.alternate, size);
    const bool plain = body.find_first_not_of("0123456789") == std::string::npos;
    if (spec.type == '\0' && plain) body += ".0";
  }
  return pad(spec, sign_of(negative, spec), group(body, spec, 3), '>');
}

std::string format_text(std::string_view text, const Spec& spec) {
  if (spec.precision >= 0) text = text.substr(0, character_offset(text, spec.precision));
  return pad(spec, "", std::string(text), '<');
}

// A number of at most `limit`; -1 if there is none here.
int64_t take_number(std::string_view text, size_t* at, int64_t limit) {
  int64_t value = -1;
  while (*at < text.size() && text[*at] >= '0' && text[*at] <= '9') {
    value = std::max<int64_t>(value, 0) * 10 + (text[*at] - '0');
    if (value > limit) fail("a width or precision of a format is too large");
    ++*at;
  }
  return value;
}

std::string one_character(const Value& value) {
  if (value.is_string() && character_count(value.text()) == 1) return value.text();
  if (!value.is_integer() || value.as_int() < 0 || value.as_int() > 0x10FFFF) {
    fail("%c takes one character");
  }
  std::string out;
  utf8_append(static_cast<uint32_t>(value.as_int()), &out);
  return out;
}

// ---- "..." % values ---------------------------------------------------------------------------

class PercentFormatter {
 public:
  PercentFormatter(Heap& heap, std::string_view text, const Value& values)
      : heap_(heap), text_(text), values_(values) {}

  std::string run() {
    std::string out;
    while (at_ < text_.size()) {
      if (text_[at_] != '%') {
        out.push_back(text_[at_++]);
        continue;
      }
      ++at_;
      if (at_ < text_.size() && text_[at_] == '%') {
        out.push_back('%');
        ++at_;
        continue;
      }
      out += directive();
      heap_.expect(out.size());
      heap_.work(1);
    }
    const bool mapping = values_.is(Kind::kDict) || values_.is(Kind::kUndefined) ||
                         values_.is_sequence(Flavor::kList) || values_.is_sequence(Flavor::kRange);
    const size_t given = tuple() ? values_.sequence().items.size() : mapping ? 0 : 1;
    if (used_ < given) fail("a format has no place for some of its values");
    return out;
  }

 private:
  bool tuple() const { return values_.is_sequence(Flavor::kTuple); }

  Value next_value() {
    const size_t index = used_++;
    if (!tuple() && index == 0) return values_;
    if (!tuple() || index >= values_.sequence().items.size()) {
      fail("a format has more places than values");
    }
    return values_.sequence().items[index];
  }

  std::string directive() {
    Value value;
    if (at_ < text_.size() && text_[at_] == '(') {
      const size_t end = text_.find(')', at_);
      if (end == std::string_view::npos) fail("a format's name has no end");
      const std::string_view name = text_.substr(at_ + 1, end - at_ - 1);
      if (!values_.is(Kind::kDict)) fail("a format with names takes a dict");
      const Value* found = values_.dict().find(name);
      if (found == nullptr) fail("a format has no value named '" + std::string(name) + "'");
      value = *found;
      at_ = end + 1;
    }
    Spec spec;
    bool zero = false, left = false;
    for (; at_ < text_.size(); ++at_) {
      const char c = text_[at_];
      if (c == '-') {
        left = true;
      } else if (c == '+' || (c == ' ' && spec.sign != '+')) {
        spec.sign = c;
      } else if (c == '#') {
        spec.alternate = true;
      } else if (c == '0') {
        zero = true;
      } else if (c != ' ') {
        break;
      }
    }
    spec.width = std::max<int64_t>(0, star_or_number(kMaxWidth, &left));
    if (at_ < text_.size() && text_[at_] == '.') {
      ++at_;
      bool negative = false;
      spec.precision = std::max<int64_t>(0, star_or_number(kMaxPrecision, &negative));
      if (negative) spec.precision = 0;
    }
    if (at_ < text_.size() && (text_[at_] == 'h' || text_[at_] == 'l' || text_[at_] == 'L')) ++at_;
    if (at_ == text_.size()) fail("a format has no end");
    const char type = text_[at_++];
    if (!value.given()) value = next_value();
    spec.align = left ? '<' : '>';
    return write(value, type, zero && !left, &spec);
  }

  int64_t star_or_number(int64_t limit, bool* negative) {
    if (at_ >= text_.size() || text_[at_] != '*') return take_number(text_, &at_, limit);
    ++at_;
    const int64_t value = integer_of(next_value(), "a width of a format");
    if (value < -limit || value > limit) fail("a width or precision of a format is too large");
    if (value < 0) *negative = true;
    return std::abs(value);
  }

  static std::string write(const Value& value, char type, bool zero, Spec* spec) {
    if (type == 's') return format_text(text_of(value), *spec);
    if (type == 'r') {
      std::string text;
      append_repr(value, &text);
      return format_text(text, *spec);
    }
    if (type == 'c') {
      spec->precision = -1;
      return format_text(one_character(value), *spec);
    }
    if (value.is(Kind::kUndefined)) fail_undefined(value);
    if (!value.is_number()) {
      fail(std::string("%") + type + " takes a number, not " + type_name(value));
    }
    if (zero) {
      spec->fill = "0";
      spec->align = '=';
    }
    switch (type) {
      case 'd':
      case 'i':
      case 'u':
        spec->type = 'd';
        if (value.is(Kind::kFloat)) {
          if (!(std::fabs(value.as_real()) < 9e18)) fail("an integer beyond 64 bits");
          return format_integer(static_cast<int64_t>(value.as_real()), *spec);
        }
        return format_integer(value.as_int(), *spec);
      case 'x':
      case 'X':
      case 'o':
        if (value.is(Kind::kFloat)) fail(std::string("%") + type + " takes an integer");
        spec->type = type;
        return format_integer(value.as_int(), *spec);
      case 'e':
      case 'E':
      case 'f':
      case 'F':
      case 'g':
      case 'G':
        spec->type = type;
        return format_float(value.as_real(), *spec);
      default:
        fail(std::string("a format does not know %") + type);
    }
  }

  Heap& heap_;
  std::string_view text_;
  const Value& values_;
  size_t at_ = 0;
  size_t used_ = 0;
};

// ---- "...".format(values) ---------------------------------------------------------------------

class BraceFormatter {
 public:
  BraceFormatter(Heap& heap, const CallArguments& arguments) : heap_(heap), arguments_(arguments) {}

  std::string run(std::string_view text, int depth) {
    if (depth > 1) fail("a format is nested too deeply");
    std::string out;
    for (size_t at = 0; at < text.size();) {
      const char c = text[at];
      if ((c == '{' || c == '}') && at + 1 < text.size() && text[at + 1] == c) {
        out.push_back(c);
        at += 2;
      } else if (c == '}') {
        fail("a format has a single '}'");
      } else if (c == '{') {
        const size_t end = field_end(text, at + 1);
        out += field(text.substr(at + 1, end - at - 1), depth);
        at = end + 1;
      } else {
        out.push_back(c);
        ++at;
      }
      heap_.expect(out.size());
      heap_.work(1);
    }
    return out;
  }

 private:
  static size_t field_end(std::string_view text, size_t at) {
    int open = 1;
    bool brackets = false;
    for (; at < text.size(); ++at) {
      if (text[at] == '[') brackets = true;
      if (text[at] == ']') brackets = false;
      if (brackets) continue;
      if (text[at] == '{') ++open;
      if (text[at] == '}' && --open == 0) return at;
    }
    fail("a format has a '{' without its '}'");
  }

  Value first_value(std::string_view name) {
    if (name.empty()) {
      if (manual_) fail("a format mixes numbered and unnumbered places");
      automatic_ = true;
      return positional(next_++);
    }
    if (name.find_first_not_of("0123456789") == std::string_view::npos) {
      if (automatic_) fail("a format mixes numbered and unnumbered places");
      manual_ = true;
      size_t at = 0;
      return positional(static_cast<size_t>(take_number(name, &at, kMaxWidth)));
    }
    for (const auto& [key, value] : arguments_.keywords) {
      if (key == name) return value;
    }
    fail("a format has no value named '" + std::string(name) + "'");
  }

  const Value& positional(size_t index) const {
    if (index >= arguments_.positional.size()) fail("a format has more places than values");
    return arguments_.positional[index];
  }

  std::string field(std::string_view text, int depth) {
    size_t name_end = 0;
    bool brackets = false;
    while (name_end < text.size() &&
           (brackets || (text[name_end] != '!' && text[name_end] != ':'))) {
      if (text[name_end] == '[') brackets = true;
      if (text[name_end] == ']') brackets = false;
      ++name_end;
    }
    const std::string_view name = text.substr(0, name_end);
    const size_t first_end = std::min(name.find_first_of(".["), name.size());
    Value value = first_value(name.substr(0, first_end));
    if (first_end < name.size()) fail("attributes and items in a format are not supported");
    size_t at = name_end;
    if (at < text.size() && text[at] == '!') {
      const char conversion = at + 1 < text.size() ? text[at + 1] : '\0';
      at += 2;
      if ((conversion != 's' && conversion != 'r') || (at < text.size() && text[at] != ':')) {
        fail("a format's conversion is neither !s nor !r");
      }
      std::string converted;
      if (conversion == 's') {
        append_text(value, &converted);
      } else {
        append_repr(value, &converted);
      }
      value = heap_.string(std::move(converted));
    }
    if (at >= text.size()) return write(value, "");
    return write(value, run(text.substr(at + 1), depth + 1));
  }

  static Spec parse(std::string_view text) {
    Spec spec;
    size_t at = 0;
    const auto is_align = [](char c) { return c == '<' || c == '>' || c == '^' || c == '='; };
    const size_t first = character_offset(text, 1);
    if (first < text.size() && is_align(text[first])) {
      spec.fill = text.substr(0, first);
      spec.align = text[first];
      at = first + 1;
    } else if (!text.empty() && is_align(text[0])) {
      spec.align = text[0];
      at = 1;
    }
    const auto take = [&](std::string_view any) {
      if (at >= text.size() || any.find(text[at]) == std::string_view::npos) return '\0';
      return text[at++];
    };
    if (const char sign = take("+- ")) spec.sign = sign;
    spec.alternate = take("#") != '\0';
    if (take("0") != '\0') {
      if (spec.align == '\0') {
        spec.align = '=';
        spec.fill = "0";
      }
    }
    spec.width = std::max<int64_t>(0, take_number(text, &at, kMaxWidth));
    spec.grouping = take(",_");
    if (take(".") != '\0') {
      spec.precision = take_number(text, &at, kMaxPrecision);
      if (spec.precision < 0) fail("a format lacks its precision");
    }
    spec.type = take("bcdeEfFgGnosxX%");
    if (at != text.size()) fail("a format is not valid: '" + std::string(text) + "'");
    return spec;
  }

  static std::string write(const Value& value, std::string_view text) {
    if (text.empty()) return text_of(value);
    Spec spec = parse(text);
    if (value.is_string()) {
      if ((spec.type != '\0' && spec.type != 's') || spec.sign != '-' || spec.alternate ||
          spec.grouping != '\0' || spec.align == '=') {
        if (!(spec.align == '=' && spec.fill == "0")) fail("a format does not fit a text");
        spec.align = '<';
      }
      return format_text(value.text(), spec);
    }
    if (!value.is_number()) fail(std::string(type_name(value)) + " takes no format");
    if (spec.type == 's') fail("a format does not fit a number");
    const bool as_real =
        std::string_view("eEfFgG%").find(spec.type) != std::string_view::npos && spec.type != '\0';
    if (value.is(Kind::kFloat) || as_real) {
      if (spec.type != '\0' && !as_real && spec.type != 'n') fail("a format does not fit a number");
      return format_float(value.as_real(), spec);
    }
    if (spec.precision >= 0) fail("an integer takes no precision");
    if (spec.type == 'c') return pad(spec, "", one_character(value), '<');
    return format_integer(value.as_int(), spec);
  }

  Heap& heap_;
  const CallArguments& arguments_;
  size_t next_ = 0;
  bool automatic_ = false, manual_ = false;
};

}  // namespace

Value format_percent(Heap& heap, const Value& text, const Value& values) {
  return heap.string(PercentFormatter(heap, text.text(), values).run());
}

std::string format_braces(Heap& heap, std::string_view text, const CallArguments& arguments) {
  return BraceFormatter(heap, arguments).run(text, 0);
}

std::string escape_html(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&#34;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out.push_back(c);
    }
  }
  return out;
}

}  // namespace mlcb::jinja
