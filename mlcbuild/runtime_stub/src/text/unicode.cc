// Lookups in the generated tables, and normalization (Unicode standard annex 15).
#include "text/unicode.h"

#include <algorithm>

#include "core/utf8.h"
#include "text/unicode_tables.h"

namespace mlcb {
namespace {

// Hangul syllables are composed by arithmetic: chapter 3.12 of the Unicode standard.
constexpr uint32_t kHangulSyllable = 0xAC00, kHangulLead = 0x1100, kHangulVowel = 0x1161;
constexpr uint32_t kHangulTail = 0x11A7;  // one before the first
constexpr uint32_t kLeadCount = 19, kVowelCount = 21, kTailCount = 28;
constexpr uint32_t kSyllableCount = kLeadCount * kVowelCount * kTailCount;

UnicodeCategory find_category(uint32_t code) {
  if (code >= kInvalidByte) return kInvalid;
  const uint32_t* end = kCategories + kCategoriesSize;
  const uint32_t* after = std::upper_bound(kCategories, end, code << 5 | 31);
  return static_cast<UnicodeCategory>(after[-1] & 31);
}

struct AsciiCategories {
  UnicodeCategory at[128];
  AsciiCategories() {
    for (uint32_t code = 0; code < 128; ++code) at[code] = find_category(code);
  }
};

bool in_ranges(const CodeRange* ranges, size_t size, uint32_t code) {
  const CodeRange* end = ranges + size;
  const CodeRange* range = std::lower_bound(
      ranges, end, code, [](const CodeRange& r, uint32_t value) { return r.last < value; });
  return range != end && range->first <= code;
}

// What code becomes by the table, or itself.
uint32_t shift(const ShiftRange* ranges, size_t size, uint32_t code) {
  const ShiftRange* range =
      std::upper_bound(ranges, ranges + size, code,
                       [](uint32_t value, const ShiftRange& r) { return value < r.first; });
  if (range == ranges) return code;
  --range;  // ranges never lie inside one another
  const uint32_t step = code - range->first;
  if (step % range->stride != 0 || step / range->stride >= range->count) return code;
  return static_cast<uint32_t>(static_cast<int32_t>(code) + range->delta);
}

uint8_t combining_class(uint32_t code) {
  if (code < 0x300) return 0;
  const CombiningRange* end = kCombining + kCombiningSize;
  const CombiningRange* range =
      std::upper_bound(kCombining, end, code,
                       [](uint32_t value, const CombiningRange& r) { return value < r.first; });
  if (range == kCombining) return 0;
  --range;
  return code - range->first < range->count ? range->combining_class : 0;
}

const Decomposition* find_decomposition(uint32_t code) {
  const Decomposition* end = kDecompositions + kDecompositionsSize;
  const Decomposition* found =
      std::lower_bound(kDecompositions, end, code,
                       [](const Decomposition& d, uint32_t value) { return d.code < value; });
  return found != end && found->code == code ? found : nullptr;
}

const CompatibleSequence* find_compatible(uint32_t code) {
  const CompatibleSequence* end = kCompatibleSequences + kCompatibleSequencesSize;
  const CompatibleSequence* found =
      std::lower_bound(kCompatibleSequences, end, code,
                       [](const CompatibleSequence& s, uint32_t value) { return s.code < value; });
  return found != end && found->code == code ? found : nullptr;
}

bool is_compatible_form(UnicodeForm form) { return form >= UnicodeForm::kNfkc; }
bool is_composed_form(UnicodeForm form) {
  return form == UnicodeForm::kNfc || form == UnicodeForm::kNfkc;
}

// Whether the form may change a character, reorder it or join it to what stands before it.
bool is_unsafe(UnicodeForm form, uint32_t code) {
  if (code < 0xA0 || code >= kInvalidByte) return false;
  if (is_compatible_form(form) &&
      (shift(kCompatibleChars, kCompatibleCharsSize, code) != code || find_compatible(code))) {
    return true;
  }
  if (is_composed_form(form)) {
    // The first combining mark is U+0300.
    return code >= 0x300 && in_ranges(kNfcUnsafe, kNfcUnsafeSize, code);
  }
  return code - kHangulSyllable < kSyllableCount || combining_class(code) != 0 ||
         find_decomposition(code) != nullptr;
}

void decompose(bool compatible, uint32_t code, std::vector<uint32_t>* out) {
  if (code - kHangulSyllable < kSyllableCount) {
    const uint32_t index = code - kHangulSyllable;
    out->push_back(kHangulLead + index / (kVowelCount * kTailCount));
    out->push_back(kHangulVowel + index / kTailCount % kVowelCount);
    if (index % kTailCount != 0) out->push_back(kHangulTail + index % kTailCount);
    return;
  }
  if (compatible) {
    if (const CompatibleSequence* found = find_compatible(code)) {
      const uint16_t* units = kCompatibleUnits + found->offset;
      out->insert(out->end(), units, units + found->size);
      return;
    }
    const uint32_t single = shift(kCompatibleChars, kCompatibleCharsSize, code);
    if (single != code) {
      out->push_back(single);
      return;
    }
  }
  const Decomposition* found = find_decomposition(code);
  if (found == nullptr) {
    out->push_back(code);
    return;
  }
  decompose(false, found->first, out);  // at most four steps deep in the whole table
  if (found->second != 0) decompose(false, found->second, out);
}

// The character that first and second make together, or 0.
uint32_t compose(uint32_t first, uint32_t second) {
  if (first - kHangulLead < kLeadCount && second - kHangulVowel < kVowelCount) {
    return kHangulSyllable +
           ((first - kHangulLead) * kVowelCount + (second - kHangulVowel)) * kTailCount;
  }
  if (first - kHangulSyllable < kSyllableCount && (first - kHangulSyllable) % kTailCount == 0 &&
      second - kHangulTail - 1 < kTailCount - 1) {
    return first + (second - kHangulTail);
  }
  const uint64_t key = uint64_t{first} << 32 | second;
  const uint16_t* end = kCompositions + kCompositionsSize;
  auto key_of = [](uint16_t index) {
    const Decomposition& d = kDecompositions[index];
    return uint64_t{d.first} << 32 | d.second;
  };
  const uint16_t* found =
      std::lower_bound(kCompositions, end, key,
                       [&](uint16_t index, uint64_t value) { return key_of(index) < value; });
  return found != end && key_of(*found) == key ? kDecompositions[*found].code : 0;
}

// Normalizes a stretch that begins at a boundary and ends before one.
void normalize_segment(UnicodeForm form, const std::vector<uint32_t>& segment,
                       std::vector<uint32_t>* buffer, std::string* out) {
  std::vector<uint32_t>& chars = *buffer;
  chars.clear();
  for (uint32_t code : segment) decompose(is_compatible_form(form), code, &chars);

  std::vector<std::pair<uint8_t, uint32_t>> marks;
  for (size_t i = 0; i < chars.size();) {
    size_t end = i;
    marks.clear();
    for (; end < chars.size(); ++end) {
      const uint8_t combining = combining_class(chars[end]);
      if (combining == 0) break;
      marks.emplace_back(combining, chars[end]);
    }
    std::stable_sort(marks.begin(), marks.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    for (size_t j = 0; j < marks.size(); ++j) chars[i + j] = marks[j].second;
    i = end + 1;
  }

  if (!is_composed_form(form)) {
    for (uint32_t code : chars) utf8_append(code, out);
    return;
  }
  constexpr size_t kNone = SIZE_MAX;
  size_t starter = kNone, kept = 0;
  uint8_t last_class = 0;
  for (size_t i = 0; i < chars.size(); ++i) {
    const uint32_t code = chars[i];
    const uint8_t combining = combining_class(code);
    // A mark is blocked by one of the same or a higher class between it and the starter.
    if (starter != kNone && (kept == starter + 1 || last_class < combining)) {
      if (const uint32_t composite = compose(chars[starter], code)) {
        chars[starter] = composite;
        continue;
      }
    }
    if (combining == 0) starter = kept;
    last_class = combining;
    chars[kept++] = code;
  }
  for (size_t i = 0; i < kept; ++i) utf8_append(chars[i], out);
}

}  // namespace

UnicodeCategory unicode_category(uint32_t code) {
  static const AsciiCategories ascii;
  return code < 128 ? ascii.at[code] : find_category(code);
}

bool unicode_is_white_space(uint32_t code) {
  if (code < 0x80) return code == ' ' || (code >= '\t' && code <= '\r');
  if (code == 0x85) return true;
  if (code < 0xA0 || (code > 0xA0 && code < 0x1680) || code > 0x3000) return code == 0xA0;
  return (category_bit(find_category(code)) & kCategoriesSeparator) != 0;
}

bool unicode_is_word(uint32_t code) {
  if (kCategoriesWord >> unicode_category(code) & 1) return true;
  for (size_t i = 0; i < sizeof(kWordRanges) / sizeof(kWordRanges[0]); i += 2) {
    if (code >= kWordRanges[i] && code <= kWordRanges[i + 1]) return true;
  }
  return false;
}

std::vector<std::pair<uint32_t, uint32_t>> unicode_foldings() {
  std::vector<std::pair<uint32_t, uint32_t>> foldings;
  for (size_t i = 0; i < kFoldsSize; ++i) {
    const ShiftRange& range = kFolds[i];
    for (uint32_t k = 0; k < range.count; ++k) {
      const uint32_t code = range.first + k * range.stride;
      foldings.emplace_back(static_cast<uint32_t>(static_cast<int32_t>(code) + range.delta), code);
    }
  }
  std::sort(foldings.begin(), foldings.end());
  return foldings;
}

bool unicode_is_numeric(uint32_t code) {
  if (code < 0x80) return code >= '0' && code <= '9';
  // Two blocks that came with Unicode 17.
  return (kCategoriesNumber >> unicode_category(code) & 1) != 0 ||
         (code >= 0x11DE0 && code <= 0x11DE9) || (code >= 0x16FF4 && code <= 0x16FF6);
}

bool unicode_is_punctuation(uint32_t code) {
  if (code < 0x80) {
    return (code >= '!' && code <= '/') || (code >= ':' && code <= '@') ||
           (code >= '[' && code <= '`') || (code >= '{' && code <= '~');
  }
  const bool punctuation = (kCategoriesPunctuation >> unicode_category(code) & 1) != 0;
  return punctuation != in_ranges(kPunctuationExceptions, kPunctuationExceptionsSize, code);
}

bool unicode_is_accent(uint32_t code) {
  if (code < 0x300) return false;
  const bool mark = (kCategoriesMark >> unicode_category(code) & 1) != 0;
  return mark != in_ranges(kMarkExceptions, kMarkExceptionsSize, code);
}

bool unicode_is_word_or_joiner(uint32_t code) {
  return unicode_is_word(code) || code == 0x200C || code == 0x200D;
}

void unicode_append_lower(uint32_t code, std::string* out) {
  if (code < 0x80) {
    out->push_back(static_cast<char>(code >= 'A' && code <= 'Z' ? code + 32 : code));
  } else if (code == 0x130) {
    out->append("i\xCC\x87");
  } else {
    utf8_append(shift(kLowers, kLowersSize, code), out);
  }
}

bool unicode_normalize(UnicodeForm form, std::string_view text, std::string* out) {
  const char* const end = text.data() + text.size();
  const char* copied = text.data();    // everything before it is in *out
  const char* boundary = text.data();  // start of the last character that begins a segment
  bool changed = false;
  std::vector<uint32_t> segment, buffer;
  for (const char* p = text.data(); p != end;) {
    if (static_cast<uint8_t>(*p) < 0x80) {
      boundary = p++;
      continue;
    }
    Utf8Char c = utf8_decode(p, end);
    if (c.size == 0 || !is_unsafe(form, c.code)) {
      boundary = p;
      p += c.size != 0 ? c.size : 1;
      continue;
    }
    // From the boundary up to the next one. A stray byte is a boundary, but no part of a segment.
    if (!changed) out->clear();
    changed = true;
    segment.clear();
    Utf8Char first = utf8_decode(boundary, end);
    if (first.size == 0) {
      boundary += 1;
      first = utf8_decode(boundary, end);
    }
    out->append(copied, static_cast<size_t>(boundary - copied));
    segment.push_back(first.code);
    p = boundary + first.size;
    while (p != end && static_cast<uint8_t>(*p) >= 0x80) {
      c = utf8_decode(p, end);
      if (c.size == 0 || !is_unsafe(form, c.code)) break;
      segment.push_back(c.code);
      p += c.size;
    }
    normalize_segment(form, segment, &buffer, out);
    copied = boundary = p;
  }
  if (!changed) return false;
  out->append(copied, static_cast<size_t>(end - copied));
  return true;
}

}  // namespace mlcb
