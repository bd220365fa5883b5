// Characters of a class as bytes: UTF-8, or JSON string escapes.
#include <functional>

#include "grammar/rule_set.h"

namespace mlcb {
namespace {

struct DigitRange {
  uint32_t first, last;
};
constexpr int kMaxDigits = 6;

// Numbers first to last, written with digits of the given numbers of bits: calls take for products
// of digit ranges that are these numbers, each once.
class DigitSplitter {
 public:
  using Take = std::function<void(const DigitRange* digits, int count)>;

  DigitSplitter(const int* bits, int count, Take take)
      : bits_(bits), count_(count), take_(std::move(take)) {}

  void split(uint32_t first, uint32_t last) { split_at(0, first, last); }

 private:
  // The digits from index on.
  void split_at(int index, uint32_t first, uint32_t last) {
    if (index == count_) return take_(digits_, count_);
    int below = 0;  // bits of the digits behind this one
    for (int i = index + 1; i < count_; ++i) below += bits_[i];
    const uint32_t mask = (1u << below) - 1;
    uint32_t high = first >> below, high_end = last >> below;
    if (high == high_end) {
      digits_[index] = {high, high};
      return split_at(index + 1, first & mask, last & mask);
    }
    if ((first & mask) != 0) {
      digits_[index] = {high, high};
      split_at(index + 1, first & mask, mask);
      ++high;
    }
    const bool partial = (last & mask) != mask;
    if (partial) --high_end;
    if (high <= high_end) {
      digits_[index] = {high, high_end};
      split_at(index + 1, 0, mask);
    }
    if (partial) {
      digits_[index] = {high_end + 1, high_end + 1};
      split_at(index + 1, 0, last & mask);
    }
  }

  const int* bits_;
  int count_;
  Take take_;
  DigitRange digits_[kMaxDigits] = {};
};

struct Utf8Length {
  uint32_t first, last;
  int count;
  int bits[4];
  uint32_t lead;
};
constexpr Utf8Length kUtf8Lengths[] = {{0, 0x7F, 1, {7, 0, 0, 0}, 0},
                                       {0x80, 0x7FF, 2, {5, 6, 0, 0}, 0xC0},
                                       {0x800, 0xD7FF, 3, {4, 6, 6, 0}, 0xE0},
                                       {0xE000, 0xFFFF, 3, {4, 6, 6, 0}, 0xE0},
                                       {0x10000, kLastChar, 4, {3, 6, 6, 6}, 0xF0}};

void add_utf8(RuleSet* rules, uint32_t from, const CharSet& set, uint32_t to) {
  for (const Utf8Length& length : kUtf8Lengths) {
    DigitSplitter splitter(length.bits, length.count, [&](const DigitRange* digits, int count) {
      uint32_t at = from;
      for (int i = 0; i < count; ++i) {
        const uint32_t next = i + 1 == count ? to : rules->add_state();
        const uint32_t base = i == 0 ? length.lead : 0x80;
        rules->add_bytes(at, base + digits[i].first, base + digits[i].last, next);
        at = next;
      }
    });
    const CharSet part = set.intersect(CharSet(length.first, length.last));
    for (const CharRange& range : part.ranges()) splitter.split(range.first, range.last);
  }
}

// One hexadecimal digit with a value in the range, in either case.
void add_hex_digit(RuleSet* rules, uint32_t from, DigitRange digit, uint32_t to) {
  if (digit.first < 10) {
    rules->add_bytes(from, '0' + digit.first, '0' + (digit.last < 10 ? digit.last : 9), to);
  }
  if (digit.last < 10) return;
  const uint32_t first = digit.first < 10 ? 0 : digit.first - 10;
  rules->add_bytes(from, 'a' + first, 'a' + digit.last - 10, to);
  rules->add_bytes(from, 'A' + first, 'A' + digit.last - 10, to);
}

uint32_t then_hex_digit(RuleSet* rules, uint32_t from, DigitRange digit) {
  const uint32_t to = rules->add_state();
  add_hex_digit(rules, from, digit, to);
  return to;
}

}  // namespace

void RuleSet::add_class(uint32_t from, const CharSet& set, TextEncoding encoding, uint32_t to) {
  if (encoding == TextEncoding::kUtf8) return add_utf8(this, from, set, to);
  CharSet raw(0x20, kLastChar);
  raw = raw.intersect(CharSet('"', '"').complement()).intersect(CharSet('\\', '\\').complement());
  add_utf8(this, from, set.intersect(raw), to);
  add_json_escapes(from, set, to);
}

void RuleSet::add_json_escapes(uint32_t from, const CharSet& set, uint32_t to) {
  if (set.empty()) return;
  const uint32_t escape = then_literal(from, "\\");
  constexpr char kShort[] = "\"\"\\\\//\bb\ff\nn\rr\tt";
  for (const char* p = kShort; *p != 0; p += 2) {
    const uint32_t code = static_cast<uint8_t>(p[0]);
    if (!set.intersect(CharSet(code, code)).empty()) add_literal(escape, {p + 1, 1}, to);
  }
  const uint32_t number = then_literal(escape, "u");
  constexpr int kBits[] = {4, 4, 4, 4};
  DigitSplitter basic(kBits, 4, [&](const DigitRange* digits, int count) {
    uint32_t at = number;
    for (int i = 0; i + 1 < count; ++i) at = then_hex_digit(this, at, digits[i]);
    add_hex_digit(this, at, digits[count - 1], to);
  });
  for (const CharRange whole : {CharRange{0, 0xD7FF}, CharRange{0xE000, 0xFFFF}}) {
    const CharSet part = set.intersect(CharSet(whole.first, whole.last));
    for (const CharRange& range : part.ranges()) basic.split(range.first, range.last);
  }
  // Beyond: two surrogates, D800 + the upper ten bits and DC00 + the lower ten.
  constexpr int kPairBits[] = {2, 4, 4, 2, 4, 4};
  DigitSplitter pairs(kPairBits, 6, [&](const DigitRange* digits, int) {
    uint32_t at = then_hex_digit(this, number, {0xD, 0xD});
    at = then_hex_digit(this, at, {8 + digits[0].first, 8 + digits[0].last});
    at = then_hex_digit(this, at, digits[1]);
    at = then_hex_digit(this, at, digits[2]);
    at = then_hex_digit(this, then_literal(at, "\\u"), {0xD, 0xD});
    at = then_hex_digit(this, at, {12 + digits[3].first, 12 + digits[3].last});
    at = then_hex_digit(this, at, digits[4]);
    add_hex_digit(this, at, digits[5], to);
  });
  const CharSet part = set.intersect(CharSet(0x10000, kLastChar));
  for (const CharRange& range : part.ranges()) {
    pairs.split(range.first - 0x10000, range.last - 0x10000);
  }
}

}  // namespace mlcb
