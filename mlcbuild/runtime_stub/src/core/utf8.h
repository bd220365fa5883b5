// Strict UTF-8 decoding (no overlong forms, no surrogates, nothing beyond U+10FFFF).
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

namespace mlcb {

struct Utf8Char {
  uint32_t code = 0;
  uint32_t size = 0;       // bytes of a valid character; 0: the bytes here are not one
  uint32_t bad_size = 0;   // if size is 0: bytes that one U+FFFD stands for (the maximal subpart)
  bool truncated = false;  // if size is 0: more bytes could still make it valid
};

// Reads the character at p; p < end. The well-formed sequences are those of table 3-7 of the
// Unicode standard.
inline Utf8Char utf8_decode(const char* p, const char* end) {
  auto byte = [&](size_t i) { return static_cast<uint8_t>(p[i]); };
  Utf8Char result;
  const uint8_t lead = byte(0);
  if (lead < 0x80) {
    result.code = lead;
    result.size = 1;
    return result;
  }
  uint32_t need = 0;
  uint8_t low = 0x80, high = 0xBF;  // range of the second byte
  if (lead >= 0xC2 && lead <= 0xDF) {
    need = 2;
    result.code = lead & 0x1F;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    need = 3;
    result.code = lead & 0x0F;
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    need = 4;
    result.code = lead & 0x07;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
  } else {
    result.bad_size = 1;
    return result;
  }
  const size_t available = static_cast<size_t>(end - p);
  for (uint32_t i = 1; i < need; ++i) {
    if (i >= available) {
      result.bad_size = i;
      result.truncated = true;
      return result;
    }
    if (byte(i) < low || byte(i) > high) {
      result.bad_size = i;
      return result;
    }
    result.code = result.code << 6 | (byte(i) & 0x3F);
    low = 0x80;
    high = 0xBF;
  }
  result.size = need;
  return result;
}

// Appends a code point; one that UTF-8 cannot hold becomes U+FFFD.
inline void utf8_append(uint32_t code, std::string* out) {
  if (code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF)) code = 0xFFFD;
  auto put = [&](uint32_t byte) { out->push_back(static_cast<char>(byte)); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xC0 | code >> 6);
    put(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    put(0xE0 | code >> 12);
    put(0x80 | (code >> 6 & 0x3F));
    put(0x80 | (code & 0x3F));
  } else {
    put(0xF0 | code >> 18);
    put(0x80 | (code >> 12 & 0x3F));
    put(0x80 | (code >> 6 & 0x3F));
    put(0x80 | (code & 0x3F));
  }
}

}  // namespace mlcb
