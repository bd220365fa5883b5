// SHA-256 (FIPS 180-4), with the CPU's own instructions where it has them.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace mlcb {

// Hashes bytes that come in pieces.
class Sha256 {
 public:
  using Compress = void (*)(uint32_t state[8], const uint8_t* data, size_t blocks);
  Sha256();
  explicit Sha256(Compress compress) : compress_(compress) {}

  void update(const void* data, size_t size);
  // The digest; nothing may follow.
  void finish(uint8_t out[32]);

 private:
  Compress compress_;
  uint32_t state_[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                        0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  uint64_t size_ = 0;
  uint8_t rest_[64];  // the bytes after the last whole block
};

// The digest as 64 lowercase hexadecimal digits.
std::string sha256_hex(const void* data, size_t size);
inline std::string sha256_hex(std::string_view text) {
  return sha256_hex(text.data(), text.size());
}
// The same without the CPU's own instructions, for tests.
std::string sha256_hex_portable(const void* data, size_t size);

}  // namespace mlcb
