// Reads the characters of a pattern or a grammar one by one; knows the place for messages.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/char_set.h"

namespace mlcb {

class PatternReader {
 public:
  // Throws Error(MLCB_ERROR_GRAMMAR) if the text is too long or no UTF-8.
  PatternReader(std::string_view text, std::string where);

  [[noreturn]] void fail(const std::string& what) const;  // names the line and the column

  bool more() const { return at_ < chars_.size(); }
  uint32_t peek(size_t ahead = 0) const {
    return at_ + ahead < chars_.size() ? chars_[at_ + ahead] : kNothing;
  }
  bool next_is(char c, size_t ahead = 0) const { return peek(ahead) == static_cast<uint32_t>(c); }
  bool take(char c) {
    if (!next_is(c)) return false;
    ++at_;
    return true;
  }
  uint32_t get() { return chars_[at_++]; }
  void skip(size_t count) { at_ += count; }
  size_t at() const { return at_; }
  void go_back(size_t at) { at_ = at; }

  // Exactly that many hexadecimal digits.
  uint32_t get_hex(int digits);
  // A decimal number; false if there is no digit. Fails beyond kMaxGrammarRepeat.
  bool get_number(uint32_t* value);
  // {m}, {m,}, {,n} or {m,n} at a '{'; false, and nothing is taken, for anything else.
  bool get_bounds(uint32_t* min, uint32_t* max);
  // What *, + or ? stand for, or bounds; false, and nothing is taken, for anything else.
  bool get_repeat(uint32_t* min, uint32_t* max);

  static constexpr uint32_t kNothing = UINT32_MAX;

 private:
  std::vector<uint32_t> chars_;
  size_t at_ = 0;
  std::string where_;
};

inline bool is_digit(uint32_t c) { return c >= '0' && c <= '9'; }
inline bool is_letter(uint32_t c) { return c < 128 && (c | 32) >= 'a' && (c | 32) <= 'z'; }

}  // namespace mlcb
