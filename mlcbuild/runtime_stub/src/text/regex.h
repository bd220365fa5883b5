// The regular expressions of pre-tokenizers: backtracking with the choices of Oniguruma (Ruby
// syntax, which Hugging Face tokenizers use), in time linear in the text.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace mlcb {

// A character as the matcher sees it: code point and general category in one word.
using RegexChar = uint32_t;
inline RegexChar make_regex_char(uint32_t code, uint8_t category) {
  return code | static_cast<uint32_t>(category) << 24;
}
inline uint32_t code_of(RegexChar c) { return c & 0xFFFFFF; }
inline uint8_t category_of(RegexChar c) { return static_cast<uint8_t>(c >> 24); }

// Text as RegexChars and back. Bytes that are not UTF-8 become characters of their own, from
// kInvalidByte (unicode.h) up.
void regex_chars(std::string_view text, std::vector<RegexChar>* chars);
void append_utf8(const RegexChar* chars, size_t count, std::string* out);

// A set of characters.
struct CharClass {
  uint64_t ascii[2] = {0, 0};  // the answer for ASCII
  uint32_t categories = 0;     // bit set of general categories
  bool negated = false;
  std::vector<uint32_t> ranges;  // first, last (inclusive), first, last, ...
  std::vector<CharClass> nested;

  bool contains(RegexChar c) const {
    const uint32_t code = code_of(c);
    if (code < 128) return ascii[code >> 6] >> (code & 63) & 1;
    return contains_slow(c);
  }
  bool contains_slow(RegexChar c) const;
  void add_range(uint32_t first, uint32_t last) { ranges.insert(ranges.end(), {first, last}); }
  void finish(bool ignore_case);  // fills ascii and adds the case variants
};

enum class RegexOp : uint8_t {
  kClass,       // one character of classes[x], then the next instruction
  kStar,        // any number of characters of classes[x], as many as possible first
  kStarAtomic,  // the same, and never fewer
  kSplit,       // go on at x or, if that fails, at y
  kJump,        // go on at x
  kLook,        // lookahead: the instructions that follow, up to their kAccept, then x
  kLookNot,
  kAtomic,  // as kLook, and go on behind what matched
  kAssert,  // x: a RegexAssert
  kAccept
};
enum class RegexAssert : uint8_t {
  kLineBegin,
  kLineEnd,
  kTextBegin,
  kTextEnd,
  kTextEndOrNewline,
  kWordBoundary,
  kNotWordBoundary
};
struct RegexInst {
  RegexOp op = RegexOp::kAccept;
  uint32_t x = 0, y = 0;
  uint32_t memo = 0;  // column in the matcher's table of failures (branching instructions only)
};

class Regex {
 public:
  // Throws Error(MLCB_ERROR_UNSUPPORTED) naming the construct that this matcher lacks.
  static Regex compile(std::string_view pattern);
  // Matches exactly this text.
  static Regex literal(std::string_view text);

  const std::vector<RegexInst>& program() const { return program_; }
  const std::vector<CharClass>& classes() const { return classes_; }
  uint32_t memo_columns() const { return memo_columns_; }

 private:
  friend class RegexCompiler;
  std::vector<RegexInst> program_;
  std::vector<CharClass> classes_;
  uint32_t memo_columns_ = 0;
};

// Finds the matches in one text, from left to right. Reuse a matcher over texts to keep its
// buffers.
//
// A choice that failed at some place fails there whatever led to it (there are no back references),
// so once a search takes many steps its failures are written down and never tried again: the time
// is bounded by instructions * characters. Patterns with atomic groups can escape that bound; then
// search() throws Error(MLCB_ERROR_UNSUPPORTED) after some 1000 steps per character.
class RegexMatcher {
 public:
  explicit RegexMatcher(const Regex& regex) : regex_(&regex) {}

  void reset(const RegexChar* text, size_t size);
  // The next match, [*begin, *end), which may be empty but not directly behind the one before.
  bool next(size_t* begin, size_t* end);

 private:
  struct Frame {
    uint32_t pc;
    uint32_t kind;
    size_t position, floor;
  };
  static constexpr size_t kNoMatch = SIZE_MAX;

  size_t match_at(uint32_t pc, size_t position);
  bool backtrack(size_t base, uint32_t* pc, size_t* position);
  bool check(RegexAssert assertion, size_t position) const;
  void start_memo();
  bool failed(uint32_t column, size_t position) const {
    const size_t bit = position * regex_->memo_columns() + column;
    return memo_[bit >> 6] >> (bit & 63) & 1;
  }
  void set_failed(uint32_t column, size_t position) {
    const size_t bit = position * regex_->memo_columns() + column;
    memo_[bit >> 6] |= uint64_t{1} << (bit & 63);
  }

  const Regex* regex_;
  const RegexChar* text_ = nullptr;
  size_t size_ = 0, from_ = 0, last_end_ = kNoMatch;
  uint64_t steps_ = 0;
  bool memo_on_ = false;
  std::vector<uint64_t> memo_;
  std::vector<Frame> stack_;
};

}  // namespace mlcb
