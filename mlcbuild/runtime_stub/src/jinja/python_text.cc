#include "jinja/python_text.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "core/utf8.h"
#include "jinja/case_tables.h"
#include "jinja/value.h"
#include "text/unicode.h"

namespace mlcb::jinja {
namespace {

// Decodes the character at p and moves p behind it; bytes that are not UTF-8 count one by one.
uint32_t next_code(const char*& p, const char* end) {
  const Utf8Char c = utf8_decode(p, end);
  if (c.size == 0) return static_cast<uint8_t>(*p++);
  p += c.size;
  return c.code;
}

bool is_continuation(char c) { return (static_cast<uint8_t>(c) & 0xC0) == 0x80; }

uint32_t mapped(uint32_t code, const CaseRange* ranges, size_t count) {
  for (size_t i = 0; i < count && ranges[i].first <= code; ++i) {
    const uint32_t offset = code - ranges[i].first;
    if (offset % ranges[i].stride == 0 && offset / ranges[i].stride < ranges[i].count) {
      return static_cast<uint32_t>(static_cast<int32_t>(code) + ranges[i].delta);
    }
  }
  return code;
}

uint32_t lower_code(uint32_t code) { return mapped(code, kLowerRanges, kLowerRangesSize); }

bool is_cased(uint32_t code) {
  const UnicodeCategory category = unicode_category(code);
  return category == kLu || category == kLl || category == kLt || lower_code(code) != code ||
         mapped(code, kUpperRanges, kUpperRangesSize) != code;
}

bool is_case_ignorable(uint32_t code) {
  switch (code) {
    case '\'':
    case '.':
    case ':':
    case '^':
    case '`':
    case 0xB7:
    case 0x2018:
    case 0x2019:
    case 0x2024:
    case 0x2027:
      return true;
    default:
      break;
  }
  const UnicodeCategory category = unicode_category(code);
  return category == kMn || category == kMe || category == kCf || category == kLm ||
         category == kSk;
}

// Whether the sigma at p is the last letter of a word.
bool is_final_sigma(std::string_view text, const char* p, const char* after) {
  bool before = false;
  for (const char* q = p; q != text.data();) {
    do {
      --q;
    } while (q != text.data() && is_continuation(*q));
    const char* at = q;
    const uint32_t code = next_code(at, text.data() + text.size());
    if (is_case_ignorable(code)) continue;
    before = is_cased(code);
    break;
  }
  if (!before) return false;
  const char* end = text.data() + text.size();
  while (after != end) {
    const uint32_t code = next_code(after, end);
    if (is_case_ignorable(code)) continue;
    return !is_cased(code);
  }
  return true;
}

void append_special(const CaseSpecial& special, std::string* out) {
  for (const uint16_t code : special.to) {
    if (code != 0) utf8_append(code, out);
  }
}

const CaseSpecial* find_special(uint32_t code, const CaseSpecial* specials, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    if (specials[i].code == code) return &specials[i];
  }
  return nullptr;
}

void append_upper(uint32_t code, std::string* out) {
  if (code < 0x80) {
    out->push_back(static_cast<char>(code >= 'a' && code <= 'z' ? code - 32 : code));
  } else if (const CaseSpecial* s = find_special(code, kUpperSpecials, kUpperSpecialsSize)) {
    append_special(*s, out);
  } else {
    utf8_append(mapped(code, kUpperRanges, kUpperRangesSize), out);
  }
}

void append_title(uint32_t code, std::string* out) {
  if (const CaseSpecial* s = find_special(code, kTitleSpecials, kTitleSpecialsSize)) {
    append_special(*s, out);
  } else {
    append_upper(code, out);
  }
}

// Appends the lower case of the character at p and moves p behind it.
void append_lower(std::string_view text, const char*& p, std::string* out) {
  const char* start = p;
  const uint32_t code = next_code(p, text.data() + text.size());
  if (code < 0x80) {
    out->push_back(static_cast<char>(code >= 'A' && code <= 'Z' ? code + 32 : code));
  } else if (code == 0x130) {
    *out += "i\xCC\x87";
  } else if (code == 0x3A3) {
    utf8_append(is_final_sigma(text, start, p) ? 0x3C2 : 0x3C3, out);
  } else {
    utf8_append(lower_code(code), out);
  }
}

// Copies the digits (and a sign) that printf wrote; what it put between them is the decimal point.
std::string with_point(const char* printed) {
  std::string out;
  bool point = false;
  for (const char* p = printed; *p != '\0'; ++p) {
    const bool known = (*p >= '0' && *p <= '9') || std::strchr("+-eE", *p) != nullptr;
    if (known) {
      point = false;
      out.push_back(*p);
    } else if (!point) {
      point = true;
      out.push_back('.');
    }
  }
  return out;
}

std::string printed(const char* format, int precision, double value) {
  char small[64];
  const int size = std::snprintf(small, sizeof(small), format, precision, value);
  if (size >= 0 && static_cast<size_t>(size) < sizeof(small)) return with_point(small);
  std::string large(static_cast<size_t>(size) + 1, '\0');
  std::snprintf(large.data(), large.size(), format, precision, value);
  return with_point(large.c_str());
}

// Digits with single underscores between them; returns how many characters they take.
size_t take_digits(std::string_view text, std::string* digits) {
  size_t at = 0;
  while (at < text.size()) {
    if (text[at] >= '0' && text[at] <= '9') {
      digits->push_back(text[at++]);
    } else if (text[at] == '_' && at > 0 && at + 1 < text.size() && text[at + 1] >= '0' &&
               text[at + 1] <= '9') {
      ++at;
    } else {
      break;
    }
  }
  return at;
}

bool equals_ignoring_case(std::string_view text, std::string_view word) {
  if (text.size() != word.size()) return false;
  for (size_t i = 0; i < text.size(); ++i) {
    if ((text[i] | 0x20) != word[i]) return false;
  }
  return true;
}

}  // namespace

bool is_space(uint32_t code) {
  return unicode_is_white_space(code) || (code >= 0x1C && code <= 0x1F);
}

bool is_printable(uint32_t code) {
  if (code == ' ') return true;
  const uint32_t bit = category_bit(unicode_category(code));
  return (bit & (kCategoriesSeparator | kCategoriesOther)) == 0;
}

int64_t character_count(std::string_view text) {
  int64_t count = 0;
  for (const char c : text) count += is_continuation(c) ? 0 : 1;
  return count;
}

size_t character_offset(std::string_view text, int64_t index) {
  size_t at = 0;
  while (at < text.size() && index > 0) {
    ++at;
    while (at < text.size() && is_continuation(text[at])) ++at;
    --index;
  }
  return at;
}

std::vector<std::string_view> characters(std::string_view text) {
  std::vector<std::string_view> result;
  const char* end = text.data() + text.size();
  for (const char* p = text.data(); p != end;) {
    const char* start = p;
    next_code(p, end);
    result.emplace_back(start, static_cast<size_t>(p - start));
  }
  return result;
}

// ---- finding, stripping, splitting ------------------------------------------------------------

namespace {

constexpr size_t kShort = 32;  // bytes of what a simple search is fast for

// The first place of a part in a text, given by their bytes. A hash of the text's last part_size
// bytes moves along: linear time, and no table that is as large as the part.
template <typename TextAt, typename PartAt>
size_t find_long(size_t text_size, size_t part_size, TextAt text, PartAt part) {
  constexpr uint64_t kBase = 0x9E3779B97F4A7C15;
  constexpr int kMaxMisses = 1000;  // equal hashes of unequal bytes: somebody made them so
  if (part_size > text_size) return std::string_view::npos;
  uint64_t wanted = 0, found = 0, leaving = 1;
  for (size_t i = 0; i < part_size; ++i) {
    wanted = wanted * kBase + static_cast<uint8_t>(part(i));
    found = found * kBase + static_cast<uint8_t>(text(i));
    if (i > 0) leaving *= kBase;
  }
  int misses = 0;
  for (size_t at = 0;; ++at) {
    if (found == wanted) {
      size_t same = 0;
      while (same < part_size && text(at + same) == part(same)) ++same;
      if (same == part_size) return at;
      if (++misses > kMaxMisses) fail("a text is made to be searched for long");
    }
    if (at + part_size == text_size) return std::string_view::npos;
    found = (found - static_cast<uint8_t>(text(at)) * leaving) * kBase +
            static_cast<uint8_t>(text(at + part_size));
  }
}

template <typename Strips>
std::string_view strip_if(std::string_view text, bool left, bool right, Strips strips) {
  const char* begin = text.data();
  const char* end = begin + text.size();
  while (left && begin != end) {
    const char* p = begin;
    if (!strips(next_code(p, end))) break;
    begin = p;
  }
  while (right && end != begin) {
    const char* p = end - 1;
    while (p != begin && is_continuation(*p)) --p;
    const char* at = p;
    if (!strips(next_code(at, end)) || at != end) break;
    end = p;
  }
  return std::string_view(begin, static_cast<size_t>(end - begin));
}

}  // namespace

size_t find_text(std::string_view text, std::string_view part, size_t from) {
  if (part.size() <= kShort || from > text.size()) return text.find(part, from);
  const size_t found = find_long(
      text.size() - from, part.size(), [&](size_t i) { return text[from + i]; },
      [&](size_t i) { return part[i]; });
  return found == std::string_view::npos ? found : found + from;
}

size_t find_last_text(std::string_view text, std::string_view part) {
  if (part.size() <= kShort) return text.rfind(part);
  const size_t found = find_long(
      text.size(), part.size(), [&](size_t i) { return text[text.size() - 1 - i]; },
      [&](size_t i) { return part[part.size() - 1 - i]; });
  return found == std::string_view::npos ? found : text.size() - found - part.size();
}

std::string_view strip(std::string_view text, bool left, bool right) {
  return strip_if(text, left, right, is_space);
}

std::string_view strip(std::string_view text, std::string_view chars, bool left, bool right) {
  return strip_if(text, left, right, [&](uint32_t code) {
    std::string one;
    utf8_append(code, &one);
    return chars.find(one) != std::string_view::npos;
  });
}

std::vector<std::string_view> split_white_space(std::string_view text, int64_t limit,
                                                bool from_right) {
  std::vector<std::string_view> parts;
  text = strip(text, !from_right, from_right);
  while (!text.empty()) {
    if (limit >= 0 && static_cast<int64_t>(parts.size()) == limit) {
      parts.push_back(strip(text, from_right, !from_right));
      if (parts.back().empty()) parts.pop_back();
      break;
    }
    const char* begin = text.data();
    const char* end = begin + text.size();
    if (from_right) {
      const char* p = end;
      while (p != begin) {
        const char* q = p - 1;
        while (q != begin && is_continuation(*q)) --q;
        const char* at = q;
        if (is_space(next_code(at, end))) break;
        p = q;
      }
      parts.emplace_back(p, static_cast<size_t>(end - p));
      text = strip(std::string_view(begin, static_cast<size_t>(p - begin)), false, true);
    } else {
      const char* p = begin;
      while (p != end) {
        const char* at = p;
        if (is_space(next_code(at, end))) break;
        p = at;
      }
      parts.emplace_back(begin, static_cast<size_t>(p - begin));
      text = strip(std::string_view(p, static_cast<size_t>(end - p)), true, false);
    }
  }
  if (from_right) return std::vector<std::string_view>(parts.rbegin(), parts.rend());
  return parts;
}

std::vector<std::string_view> split(std::string_view text, std::string_view separator,
                                    int64_t limit, bool from_right) {
  std::vector<std::string_view> parts;
  while (limit < 0 || static_cast<int64_t>(parts.size()) < limit) {
    const size_t at = from_right ? find_last_text(text, separator) : find_text(text, separator, 0);
    if (at == std::string_view::npos) break;
    const std::string_view before = text.substr(0, at);
    const std::string_view behind = text.substr(at + separator.size());
    parts.push_back(from_right ? behind : before);
    text = from_right ? before : behind;
  }
  parts.push_back(text);
  if (from_right) return std::vector<std::string_view>(parts.rbegin(), parts.rend());
  return parts;
}

std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends) {
  std::vector<std::string_view> lines;
  const char* end = text.data() + text.size();
  const char* start = text.data();
  for (const char* p = start; p != end;) {
    const char* at = p;
    const uint32_t code = next_code(p, end);
    const bool breaks = (code >= 0x0A && code <= 0x0D) || (code >= 0x1C && code <= 0x1E) ||
                        code == 0x85 || code == 0x2028 || code == 0x2029;
    if (!breaks) continue;
    if (code == '\r' && p != end && *p == '\n') ++p;
    lines.emplace_back(start, static_cast<size_t>((keep_ends ? p : at) - start));
    start = p;
  }
  if (start != end) lines.emplace_back(start, static_cast<size_t>(end - start));
  return lines;
}

std::string replace(std::string_view text, std::string_view old, std::string_view with,
                    int64_t limit) {
  std::string out;
  if (old.empty()) {  // between all characters
    int64_t done = 0;
    size_t at = 0;
    while (limit < 0 || done < limit) {
      out += with;
      ++done;
      if (at >= text.size()) return out;
      const size_t size = character_offset(text.substr(at), 1);
      out += text.substr(at, size);
      at += size;
    }
    return out.append(text.substr(at));
  }
  for (int64_t done = 0; limit < 0 || done < limit; ++done) {
    const size_t at = find_text(text, old, 0);
    if (at == std::string_view::npos) break;
    out += text.substr(0, at);
    out += with;
    text.remove_prefix(at + old.size());
  }
  return out.append(text);
}

// ---- upper and lower case ---------------------------------------------------------------------

std::string to_upper(std::string_view text) {
  std::string out;
  const char* end = text.data() + text.size();
  for (const char* p = text.data(); p != end;) append_upper(next_code(p, end), &out);
  return out;
}

std::string to_lower(std::string_view text) {
  std::string out;
  const char* end = text.data() + text.size();
  for (const char* p = text.data(); p != end;) append_lower(text, p, &out);
  return out;
}

std::string to_title(std::string_view text) {
  std::string out;
  const char* end = text.data() + text.size();
  bool inside = false;
  for (const char* p = text.data(); p != end;) {
    const char* q = p;
    const uint32_t code = next_code(q, end);
    if (inside) {
      append_lower(text, p, &out);
    } else {
      append_title(code, &out);
      p = q;
    }
    inside = is_cased(code);
  }
  return out;
}

std::string capitalize(std::string_view text) {
  std::string out;
  if (text.empty()) return out;
  const char* p = text.data();
  const char* end = p + text.size();
  append_title(next_code(p, end), &out);
  while (p != end) append_lower(text, p, &out);
  return out;
}

namespace {

// Whether there are cased characters, and all of them are of one case.
bool has_case(std::string_view text, bool upper) {
  bool found = false;
  const char* end = text.data() + text.size();
  for (const char* p = text.data(); p != end;) {
    const uint32_t code = next_code(p, end);
    if (!is_cased(code)) continue;
    const UnicodeCategory category = unicode_category(code);
    const bool is_upper =
        category == kLu || (category != kLl && category != kLt && lower_code(code) != code);
    if (category == kLt || is_upper != upper) return false;
    found = true;
  }
  return found;
}

}  // namespace

bool is_upper(std::string_view text) { return has_case(text, true); }
bool is_lower(std::string_view text) { return has_case(text, false); }

// ---- numbers ----------------------------------------------------------------------------------

std::string format_real(char type, int precision, bool alternate, double value) {
  if (std::isnan(value)) return type < 'a' ? "NAN" : "nan";
  if (std::isinf(value)) {
    const std::string name = type < 'a' ? "INF" : "inf";
    return value < 0 ? "-" + name : name;
  }
  const char format[] = {'%',
                         alternate ? '#' : '.',
                         alternate ? '.' : '*',
                         alternate ? '*' : type,
                         alternate ? type : '\0',
                         '\0'};
  return printed(format, precision, value);
}

std::string float_repr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  if (value == 0) return std::signbit(value) ? "-0.0" : "0.0";
  char buffer[40];
  for (int precision = 0; precision < 17; ++precision) {
    std::snprintf(buffer, sizeof(buffer), "%.*e", precision, value);
    if (std::strtod(buffer, nullptr) == value) break;
  }
  const std::string text = with_point(buffer);
  const size_t e = text.find('e');
  const int exponent = std::atoi(text.c_str() + e + 1);
  std::string sign, digits;
  for (const char c : text.substr(0, e)) {
    if (c == '-') sign = "-";
    if (c >= '0' && c <= '9') digits.push_back(c);
  }
  digits.erase(digits.find_last_not_of('0') + 1);
  const int count = static_cast<int>(digits.size());
  if (exponent < -4 || exponent >= 16) {
    std::string out = sign + digits.substr(0, 1);
    if (count > 1) out += "." + digits.substr(1);
    std::snprintf(buffer, sizeof(buffer), "e%c%02d", exponent < 0 ? '-' : '+', std::abs(exponent));
    return out + buffer;
  }
  if (exponent < 0)
    return sign + "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
  if (count <= exponent + 1) {
    return sign + digits + std::string(static_cast<size_t>(exponent + 1 - count), '0') + ".0";
  }
  const size_t whole = static_cast<size_t>(exponent) + 1;
  return sign + digits.substr(0, whole) + "." + digits.substr(whole);
}

bool parse_real(std::string_view text, double* value) {
  text = strip(text, true, true);
  const bool negative = !text.empty() && text[0] == '-';
  if (!text.empty() && (text[0] == '-' || text[0] == '+')) text.remove_prefix(1);
  if (equals_ignoring_case(text, "inf") || equals_ignoring_case(text, "infinity")) {
    *value = negative ? -HUGE_VAL : HUGE_VAL;
    return true;
  }
  if (equals_ignoring_case(text, "nan")) {
    *value = std::nan("");
    return true;
  }
  std::string digits;
  text.remove_prefix(take_digits(text, &digits));
  int64_t exponent = 0;
  if (!text.empty() && text[0] == '.') {
    text.remove_prefix(1);
    const size_t before = digits.size();
    text.remove_prefix(take_digits(text, &digits));
    exponent -= static_cast<int64_t>(digits.size() - before);
  }
  if (digits.empty()) return false;
  if (!text.empty() && (text[0] | 0x20) == 'e') {
    text.remove_prefix(1);
    const bool minus = !text.empty() && text[0] == '-';
    if (!text.empty() && (text[0] == '-' || text[0] == '+')) text.remove_prefix(1);
    std::string power;
    text.remove_prefix(take_digits(text, &power));
    if (power.empty()) return false;
    const int64_t size = power.size() > 9 ? 999999999 : std::atoll(power.c_str());
    exponent += minus ? -size : size;
  }
  if (!text.empty()) return false;
  // Without a decimal point strtod does not ask the locale.
  digits += "e" + std::to_string(exponent);
  *value = std::strtod(digits.c_str(), nullptr);
  if (negative) *value = -*value;
  return true;
}

bool parse_integer(std::string_view text, int base, int64_t* value) {
  text = strip(text, true, true);
  const bool negative = !text.empty() && text[0] == '-';
  if (!text.empty() && (text[0] == '-' || text[0] == '+')) text.remove_prefix(1);
  bool underscore_allowed = false;
  if (text.size() > 1 && text[0] == '0') {
    const char letter = static_cast<char>(text[1] | 0x20);
    const int prefixed = letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 0;
    if (prefixed != 0 && (base == 0 || base == prefixed)) {
      base = prefixed;
      text.remove_prefix(2);
      underscore_allowed = true;
    } else if (base == 0 && text.find_first_not_of("0_") != std::string_view::npos) {
      return false;
    }
  }
  if (base == 0) base = 10;
  bool digit_before = underscore_allowed, beyond = false, any = false;
  int64_t result = 0;
  for (const char c : text) {
    if (c == '_') {
      if (!digit_before) return false;
      digit_before = false;
      continue;
    }
    const int digit = c >= '0' && c <= '9'                     ? c - '0'
                      : (c | 0x20) >= 'a' && (c | 0x20) <= 'z' ? (c | 0x20) - 'a' + 10
                                                               : 99;
    if (digit >= base) return false;
    beyond |= __builtin_mul_overflow(result, static_cast<int64_t>(base), &result);
    beyond |= __builtin_sub_overflow(result, static_cast<int64_t>(digit), &result);
    digit_before = any = true;
  }
  if (!any || !digit_before) return false;
  beyond |= !negative && __builtin_sub_overflow(int64_t{0}, result, &result);
  if (beyond) fail("an integer beyond 64 bits");
  *value = result;
  return true;
}

void append_repr(std::string_view text, std::string* out) {
  const bool has_single = text.find('\'') != std::string_view::npos;
  const char quote = has_single && text.find('"') == std::string_view::npos ? '"' : '\'';
  out->push_back(quote);
  const char* end = text.data() + text.size();
  for (const char* p = text.data(); p != end;) {
    const char* start = p;
    const uint32_t code = next_code(p, end);
    char buffer[12];
    if (code == static_cast<uint8_t>(quote) || code == '\\') {
      out->push_back('\\');
      out->push_back(static_cast<char>(code));
    } else if (code == '\n' || code == '\r' || code == '\t') {
      out->push_back('\\');
      out->push_back(code == '\n' ? 'n' : code == '\r' ? 'r' : 't');
    } else if (is_printable(code)) {
      out->append(start, static_cast<size_t>(p - start));
    } else {
      const char* format = code < 0x100 ? "\\x%02x" : code < 0x10000 ? "\\u%04x" : "\\U%08x";
      std::snprintf(buffer, sizeof(buffer), format, code);
      *out += buffer;
    }
  }
  out->push_back(quote);
}

}  // namespace mlcb::jinja
