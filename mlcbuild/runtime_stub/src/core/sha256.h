// SHA-256 (FIPS 180-4), with the CPU's own instructions where it has them.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace mlcb {

// The digest as 64 lowercase hexadecimal digits.
std::string sha256_hex(const void* data, size_t size);
inline std::string sha256_hex(std::string_view text) {
  return sha256_hex(text.data(), text.size());
}
// The same without the CPU's own instructions, for tests.
std::string sha256_hex_portable(const void* data, size_t size);

}  // namespace mlcb
