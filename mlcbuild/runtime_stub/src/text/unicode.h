// Character properties and the Unicode normalization forms.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace mlcb {

// General categories; kInvalid is for bytes that are not UTF-8.
enum UnicodeCategory : uint8_t {
  kLu,
  kLl,
  kLt,
  kLm,
  kLo,
  kMn,
  kMc,
  kMe,
  kNd,
  kNl,
  kNo,
  kPc,
  kPd,
  kPs,
  kPe,
  kPi,
  kPf,
  kPo,
  kSm,
  kSc,
  kSk,
  kSo,
  kZs,
  kZl,
  kZp,
  kCc,
  kCf,
  kCs,
  kCo,
  kCn,
  kInvalid
};

constexpr uint32_t category_bit(UnicodeCategory category) { return 1u << category; }
constexpr uint32_t kCategoriesLetter = 0x1F;          // Lu Ll Lt Lm Lo
constexpr uint32_t kCategoriesMark = 0xE0;            // Mn Mc Me
constexpr uint32_t kCategoriesNumber = 0x700;         // Nd Nl No
constexpr uint32_t kCategoriesPunctuation = 0x3F800;  // Pc Pd Ps Pe Pi Pf Po
constexpr uint32_t kCategoriesSymbol = 0x3C0000;      // Sm Sc Sk So
constexpr uint32_t kCategoriesSeparator = 0x1C00000;  // Zs Zl Zp
constexpr uint32_t kCategoriesOther = 0x3E000000;     // Cc Cf Cs Co Cn
constexpr uint32_t kCategoriesAll = 0x7FFFFFFF;
// Word characters: these, and the circled and squared letters below (alphabetic symbols).
constexpr uint32_t kCategoriesWord =
    kCategoriesLetter | kCategoriesMark | category_bit(kNd) | category_bit(kNl) | category_bit(kPc);
constexpr uint32_t kWordRanges[] = {0x24B6,  0x24E9,  0x1F130, 0x1F149,
                                    0x1F150, 0x1F169, 0x1F170, 0x1F189};

// Code points from here on stand for single bytes that are not UTF-8: kInvalidByte + byte.
constexpr uint32_t kInvalidByte = 0x110000;

UnicodeCategory unicode_category(uint32_t code);
bool unicode_is_white_space(uint32_t code);  // the property White_Space
bool unicode_is_word(uint32_t code);

// (folding, character) for every character that simple case folding changes, ascending.
std::vector<std::pair<uint32_t, uint32_t>> unicode_foldings();

// What the pre-tokenizers and normalizers of Hugging Face tokenizers mean by these words; they
// follow other versions of Unicode than the categories above.
bool unicode_is_numeric(uint32_t code);
bool unicode_is_punctuation(uint32_t code);
bool unicode_is_accent(uint32_t code);
bool unicode_is_word_or_joiner(uint32_t code);  // \w of its added tokens and of Whitespace

// Appends the small letters of a character.
void unicode_append_lower(uint32_t code, std::string* out);

enum class UnicodeForm : uint8_t { kNfc, kNfd, kNfkc, kNfkd };

// Puts text in a form into *out and returns true, or returns false if it already is (then *out is
// untouched). Bytes that are not UTF-8 stay as they are.
bool unicode_normalize(UnicodeForm form, std::string_view text, std::string* out);

}  // namespace mlcb
