// The matcher: a loop over instructions with an explicit stack of choices.
#include "text/regex.h"

#include <algorithm>

#include "core/error.h"
#include "core/utf8.h"
#include "text/unicode.h"

namespace mlcb {
namespace {

enum FrameKind : uint32_t {
  kFrameStar,       // fewer repetitions are possible, down to floor
  kFrameSplit,      // the second choice of the split at pc is untried
  kFrameFailed,     // every choice of the instruction at pc has failed, at position
  kFrameFailedRun,  // so it has at floor..position
};

constexpr uint64_t kMemoSteps = 64;     // per character, before failures are written down
constexpr uint64_t kLimitSteps = 1000;  // per character, before giving up

// For word boundaries Oniguruma counts the superscript digits and fractions of Latin-1 as word
// characters (as its \w does outside of brackets).
bool is_boundary_word(RegexChar c) {
  const uint32_t code = code_of(c);
  return unicode_is_word(code) || (code < 256 && category_of(c) == kNo);
}

}  // namespace

void regex_chars(std::string_view text, std::vector<RegexChar>* chars) {
  chars->resize(text.size());
  RegexChar* out = chars->data();
  const char* end = text.data() + text.size();
  for (const char* p = text.data(); p != end;) {
    const uint8_t lead = static_cast<uint8_t>(*p);
    if (lead < 0x80) {
      *out++ = make_regex_char(lead, unicode_category(lead));
      ++p;
      continue;
    }
    const Utf8Char c = utf8_decode(p, end);
    const uint32_t code = c.size != 0 ? c.code : kInvalidByte + lead;
    *out++ = make_regex_char(code, unicode_category(code));
    p += c.size != 0 ? c.size : 1;
  }
  chars->resize(static_cast<size_t>(out - chars->data()));
}

void append_utf8(const RegexChar* chars, size_t count, std::string* out) {
  for (size_t i = 0; i < count; ++i) {
    const uint32_t code = code_of(chars[i]);
    if (code < 0x80) {
      out->push_back(static_cast<char>(code));
    } else if (code >= kInvalidByte) {
      out->push_back(static_cast<char>(code - kInvalidByte));
    } else {
      utf8_append(code, out);
    }
  }
}

bool CharClass::contains_slow(RegexChar c) const {
  bool found = categories >> category_of(c) & 1;
  if (!found && !ranges.empty()) {
    // Ranges are sorted and disjoint: an odd insertion point lies inside one.
    const uint32_t code = code_of(c);
    size_t low = 0, high = ranges.size() / 2;
    while (low < high) {
      const size_t middle = (low + high) / 2;
      if (ranges[2 * middle + 1] < code) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    found = 2 * low < ranges.size() && ranges[2 * low] <= code;
  }
  for (size_t i = 0; !found && i < nested.size(); ++i) found = nested[i].contains_slow(c);
  return found != negated;
}

void CharClass::finish(bool ignore_case) {
  auto sort_ranges = [this] {
    std::vector<std::pair<uint32_t, uint32_t>> pairs;
    for (size_t i = 0; i < ranges.size(); i += 2) pairs.emplace_back(ranges[i], ranges[i + 1]);
    std::sort(pairs.begin(), pairs.end());
    ranges.clear();
    for (const auto& [first, last] : pairs) {
      if (!ranges.empty() && first <= ranges.back() + 1) {
        ranges.back() = std::max(ranges.back(), last);
      } else {
        add_range(first, last);
      }
    }
  };
  sort_ranges();
  auto wrap = [](uint32_t code) { return make_regex_char(code, unicode_category(code)); };
  if (ignore_case) {
    // If one of the characters with a common folding is in the class, all of them are.
    const bool was_negated = negated;
    negated = false;
    const auto foldings = unicode_foldings();
    std::vector<uint32_t> added;
    for (size_t begin = 0, end = 0; begin < foldings.size(); begin = end) {
      const uint32_t folding = foldings[begin].first;
      bool found = contains_slow(wrap(folding));
      for (end = begin; end < foldings.size() && foldings[end].first == folding; ++end) {
        found = found || contains_slow(wrap(foldings[end].second));
      }
      if (!found) continue;
      added.push_back(folding);
      for (size_t i = begin; i < end; ++i) added.push_back(foldings[i].second);
    }
    for (uint32_t code : added) add_range(code, code);
    sort_ranges();
    negated = was_negated;
  }
  for (uint32_t code = 0; code < 128; ++code) {
    if (contains_slow(wrap(code))) ascii[code >> 6] |= uint64_t{1} << (code & 63);
  }
}

void RegexMatcher::reset(const RegexChar* text, size_t size) {
  text_ = text;
  size_ = size;
  from_ = 0;
  last_end_ = kNoMatch;
  steps_ = 0;
  memo_on_ = false;
  stack_.clear();
}

bool RegexMatcher::next(size_t* begin, size_t* end) {
  for (size_t start = from_; start <= size_; ++start) {
    const size_t stop = match_at(0, start);
    if (stop == kNoMatch || (stop == start && stop == last_end_)) continue;
    *begin = start;
    *end = from_ = last_end_ = stop;
    return true;
  }
  from_ = size_ + 1;
  return false;
}

void RegexMatcher::start_memo() {
  memo_on_ = true;
  memo_.assign(((size_ + 1) * regex_->memo_columns() + 63) / 64, 0);
}

bool RegexMatcher::check(RegexAssert assertion, size_t position) const {
  const bool at_begin = position == 0, at_end = position == size_;
  auto newline = [&](size_t i) { return code_of(text_[i]) == '\n'; };
  switch (assertion) {
    case RegexAssert::kLineBegin:
      return at_begin || (newline(position - 1) && !at_end);
    case RegexAssert::kLineEnd:
      return at_end || newline(position);
    case RegexAssert::kTextBegin:
      return at_begin;
    case RegexAssert::kTextEnd:
      return at_end;
    case RegexAssert::kTextEndOrNewline:
      return at_end || (position + 1 == size_ && newline(position));
    case RegexAssert::kWordBoundary:
    case RegexAssert::kNotWordBoundary:
      break;
  }
  const bool before = !at_begin && is_boundary_word(text_[position - 1]);
  const bool after = !at_end && is_boundary_word(text_[position]);
  return (before != after) == (assertion == RegexAssert::kWordBoundary);
}

// Takes the latest choice above base that is left. Returns false if there is none.
bool RegexMatcher::backtrack(size_t base, uint32_t* pc, size_t* position) {
  while (stack_.size() > base) {
    Frame& frame = stack_.back();
    const uint32_t column = regex_->program()[frame.pc].memo;
    switch (frame.kind) {
      case kFrameStar:
        if (memo_on_) set_failed(column, frame.position);
        if (frame.position == frame.floor) break;
        *pc = frame.pc + 1;
        *position = --frame.position;
        return true;
      case kFrameSplit:
        *pc = regex_->program()[frame.pc].y;
        *position = frame.position;
        if (memo_on_) {
          frame.kind = kFrameFailed;
        } else {
          stack_.pop_back();
        }
        return true;
      case kFrameFailed:
        set_failed(column, frame.position);
        break;
      case kFrameFailedRun:
        for (size_t i = frame.floor; i <= frame.position; ++i) set_failed(column, i);
        break;
    }
    stack_.pop_back();
  }
  return false;
}

// Runs from pc to its kAccept; returns where the match ends. It calls itself for groups
// with a match of their own (lookaheads), so as deep as the pattern nests them.
size_t RegexMatcher::match_at(uint32_t pc, size_t position) {
  const std::vector<RegexInst>& program = regex_->program();
  const std::vector<CharClass>& classes = regex_->classes();
  const size_t base = stack_.size();
  auto matches = [&](uint32_t index) {
    return position < size_ && classes[index].contains(text_[position]);
  };
  for (;;) {
    const RegexInst& inst = program[pc];
    bool ok = true;
    ++steps_;
    switch (inst.op) {
      case RegexOp::kAccept:
        stack_.resize(base);
        return position;
      case RegexOp::kClass:
        ok = matches(inst.x);
        ++position;
        ++pc;
        break;
      case RegexOp::kJump:
        pc = inst.x;
        break;
      case RegexOp::kAssert:
        ok = check(static_cast<RegexAssert>(inst.x), position);
        ++pc;
        break;
      case RegexOp::kSplit: {
        if (memo_on_ && failed(inst.memo, position)) {
          ok = false;
          break;
        }
        const RegexInst& first = program[inst.x];
        if (first.op == RegexOp::kClass && !matches(first.x)) {
          pc = inst.y;  // the first choice would fail at once
          break;
        }
        stack_.push_back({pc, kFrameSplit, position, 0});
        pc = inst.x;
        break;
      }
      case RegexOp::kStar:
      case RegexOp::kStarAtomic: {
        const size_t floor = position;
        bool known = memo_on_ && failed(inst.memo, position);
        while (!known && matches(inst.x)) {
          ++position;
          known = memo_on_ && failed(inst.memo, position);
        }
        steps_ += position - floor;
        if (inst.op == RegexOp::kStarAtomic) {
          ok = !known;  // it would end at the same place
          if (ok && memo_on_) stack_.push_back({pc, kFrameFailedRun, position, floor});
        } else if (known && position == floor) {
          ok = false;
        } else {
          if (known) --position;
          stack_.push_back({pc, kFrameStar, position, floor});
        }
        ++pc;
        break;
      }
      case RegexOp::kLook:
      case RegexOp::kLookNot: {
        bool found = false;
        if (memo_on_ && failed(inst.memo, position)) {
          found = false;
        } else if (memo_on_ && failed(inst.memo + 1, position)) {
          found = true;  // the second column holds successes
        } else {
          found = match_at(pc + 1, position) != kNoMatch;
          if (memo_on_) set_failed(found ? inst.memo + 1 : inst.memo, position);
        }
        ok = found == (inst.op == RegexOp::kLook);
        pc = inst.x;
        break;
      }
      case RegexOp::kAtomic: {
        const size_t stop = match_at(pc + 1, position);
        ok = stop != kNoMatch;
        position = stop;
        pc = inst.x;
        break;
      }
    }
    if (ok) continue;
    if (steps_ > kMemoSteps * (size_ + 16)) {
      if (!memo_on_) start_memo();
      if (steps_ > (kLimitSteps + 16 * program.size()) * (size_ + 1024)) {
        throw Error(MLCB_ERROR_UNSUPPORTED,
                    "tokenizer: splitting the text takes too long: its regular expression has "
                    "atomic groups that are tried again and again");
      }
    }
    if (!backtrack(base, &pc, &position)) return kNoMatch;
  }
}

}  // namespace mlcb
