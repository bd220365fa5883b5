// As Hugging Face tokenizers apply it: a cluster of characters (a base with its marks) of at most
// five bytes is replaced as a whole by the shortest entry that it begins with; other clusters
// character by character.
#include "text/precompiled.h"

#include <cstring>

#include "core/error.h"
#include "core/utf8.h"
#include "text/unicode.h"

namespace mlcb {
namespace {

constexpr size_t kMaxCluster = 5;  // bytes

[[noreturn]] void refuse(const char* why) {
  throw Error(MLCB_ERROR_BUNDLE,
              std::string("tokenizer: normalizer 'Precompiled': precompiled_charsmap ") + why);
}

std::string decode_base64(std::string_view text) {
  std::string bytes;
  bytes.reserve(text.size() / 4 * 3);
  uint32_t bits = 0;
  int count = 0;
  while (!text.empty() && text.back() == '=') text.remove_suffix(1);
  for (const char c : text) {
    uint32_t value = 0;
    if (c >= 'A' && c <= 'Z') {
      value = static_cast<uint32_t>(c - 'A');
    } else if (c >= 'a' && c <= 'z') {
      value = static_cast<uint32_t>(c - 'a' + 26);
    } else if (c >= '0' && c <= '9') {
      value = static_cast<uint32_t>(c - '0' + 52);
    } else if (c == '+' || c == '/') {
      value = c == '+' ? 62 : 63;
    } else {
      refuse("is not base64");
    }
    bits = bits << 6 | value;
    count += 6;
    if (count >= 8) {
      count -= 8;
      bytes.push_back(static_cast<char>(bits >> count & 0xFF));
    }
  }
  return bytes;
}

// The part of the grapheme cluster rules (Unicode standard annex 29) that can make clusters of at
// most kMaxCluster bytes: no Hangul, no emoji sequences, no conjuncts.
enum class Break { kOther, kControl, kAttached, kPrefix };

bool in(uint32_t code, uint32_t first, uint32_t last) { return code >= first && code <= last; }

Break break_class(uint32_t code) {
  if (code < 0x300) {
    const bool control = code < 0x20 || in(code, 0x7F, 0x9F) || code == 0xAD;
    return control || code >= kInvalidByte ? Break::kControl : Break::kOther;
  }
  if (code >= kInvalidByte) return Break::kControl;
  if (code == 0x200C || code == 0x200D || in(code, 0xFF9E, 0xFF9F) || code == 0xE33 ||
      code == 0xEB3 || in(code, 0x1F3FB, 0x1F3FF) || in(code, 0xE0020, 0xE007F)) {
    return Break::kAttached;
  }
  if (in(code, 0x600, 0x605) || code == 0x6DD || code == 0x70F || in(code, 0x890, 0x891) ||
      code == 0x8E2 || code == 0xD4E || code == 0x110BD || code == 0x110CD ||
      in(code, 0x111C2, 0x111C3) || code == 0x113D1 || code == 0x1193F || code == 0x11941 ||
      in(code, 0x11A84, 0x11A89) || code == 0x11D46 || code == 0x11F02) {
    return Break::kPrefix;
  }
  switch (unicode_category(code)) {
    case kMn:
    case kMe:
      return Break::kAttached;
    case kMc: {
      const bool alone = in(code, 0x102B, 0x102C) || code == 0x1038 || in(code, 0x1062, 0x1064) ||
                         in(code, 0x1067, 0x106D) || code == 0x1083 || in(code, 0x1087, 0x108C) ||
                         code == 0x108F || in(code, 0x109A, 0x109C) || code == 0x1A61 ||
                         in(code, 0x1A63, 0x1A64) || code == 0xAA7B || code == 0xAA7D ||
                         in(code, 0x11720, 0x11721);
      return alone ? Break::kOther : Break::kAttached;
    }
    case kCc:
    case kCf:
    case kZl:
    case kZp:
      return Break::kControl;
    case kCn: {
      // Marks of Unicode 17, which the reference knows.
      if (in(code, 0x1ACF, 0x1ADD) || in(code, 0x1AE0, 0x1AEB) || in(code, 0x10EFA, 0x10EFB) ||
          in(code, 0x11B60, 0x11B67) || code == 0x1E6E3 || code == 0x1E6E6 ||
          in(code, 0x1E6EE, 0x1E6EF) || code == 0x1E6F5) {
        return Break::kAttached;
      }
      const bool ignorable =
          code == 0x2065 || in(code, 0xFFF0, 0xFFF8) || in(code, 0xE0000, 0xE0FFF);
      return ignorable ? Break::kControl : Break::kOther;
    }
    default:
      return Break::kOther;
  }
}

uint32_t trie_offset(uint32_t unit) { return unit >> 10 << ((unit & 1u << 9) >> 6); }

struct Char {
  uint32_t code, size;
};

Char char_at(std::string_view text, size_t at) {
  const Utf8Char c = utf8_decode(text.data() + at, text.data() + text.size());
  if (c.size != 0) return {c.code, c.size};
  return {kInvalidByte + static_cast<uint8_t>(text[at]), 1};
}

}  // namespace

Precompiled Precompiled::from_base64(std::string_view base64) {
  const std::string bytes = decode_base64(base64);
  uint32_t size = 0;
  if (bytes.size() < sizeof(size)) refuse("is too short");
  std::memcpy(&size, bytes.data(), sizeof(size));
  if (size > bytes.size() - sizeof(size) || size % 4 != 0 || size == 0) {
    refuse("has a trie of a wrong size");
  }
  Precompiled result;
  result.units_.resize(size / 4);
  std::memcpy(result.units_.data(), bytes.data() + sizeof(size), size);
  result.replacements_ = bytes.substr(sizeof(size) + size);
  return result;
}

// The replacement of the shortest entry that chunk begins with.
bool Precompiled::transform(std::string_view chunk, std::string_view* replacement) const {
  size_t node = trie_offset(units_[0]);
  for (const char c : chunk) {
    if (c == 0) return false;
    node ^= static_cast<uint8_t>(c);
    if (node >= units_.size()) return false;
    const uint32_t unit = units_[node];
    if ((unit & (1u << 31 | 0xFF)) != static_cast<uint8_t>(c)) return false;
    node ^= trie_offset(unit);
    if ((unit >> 8 & 1) == 0) continue;
    if (node >= units_.size()) return false;
    const size_t begin = units_[node] & ~(1u << 31);
    if (begin >= replacements_.size()) return false;
    const size_t end = replacements_.find('\0', begin);
    *replacement =
        std::string_view(replacements_).substr(begin, end == std::string::npos ? end : end - begin);
    return true;
  }
  return false;
}

bool Precompiled::apply(std::string_view text, std::string* out) const {
  out->clear();
  std::string_view replacement;
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    Char c = char_at(text, at);
    Break previous = break_class(c.code);
    at += c.size;
    size_t chars = 1;
    for (; at < text.size(); ++chars) {
      const bool line_end = text[at - 1] == '\r' && text[at] == '\n';
      c = char_at(text, at);
      const Break next = break_class(c.code);
      const bool joined = line_end || (previous != Break::kControl && next != Break::kControl &&
                                       (next == Break::kAttached || previous == Break::kPrefix));
      if (!joined) break;
      previous = next;
      at += c.size;
    }
    const std::string_view cluster = text.substr(begin, at - begin);
    if (chars > 1 && cluster.size() <= kMaxCluster && transform(cluster, &replacement)) {
      out->append(replacement);
      continue;
    }
    for (size_t i = begin; i < at;) {
      const Char single = char_at(text, i);
      const std::string_view part = text.substr(i, single.size);
      out->append(transform(part, &replacement) ? replacement : part);
      i += single.size;
    }
  }
  return true;
}

}  // namespace mlcb
