// Base64 (RFC 4648) over streams, as TVM's runtime sources use it for tensors within JSON.
#pragma once
#include <tvm/ffi/error.h>
#include <tvm/support/io.h>

#include <cstdint>
#include <cstring>

namespace tvm::support {

inline constexpr char kBase64Digits[] =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

class Base64OutStream : public Stream {
 public:
  using Stream::Read;
  using Stream::Write;
  explicit Base64OutStream(Stream* text) : text_(text) {}

  size_t Read(void*, size_t) override {
    TVM_FFI_THROW(InternalError) << "this stream is only written";
    TVM_FFI_UNREACHABLE();
  }
  size_t Write(const void* data, size_t size) override {
    const auto* bytes = static_cast<const uint8_t*>(data);
    for (size_t i = 0; i < size; ++i) {
      bits_ = bits_ << 8 | bytes[i];
      if (++count_ == 3) flush();
    }
    return size;
  }
  // To be called once, behind the last byte.
  void Finish() {
    if (count_ > 0) flush();
  }

 private:
  // Writes the 1 to 3 bytes at hand as four digits.
  void flush() {
    bits_ <<= 8 * (3 - count_);
    char digits[4];
    for (int i = 0; i < 4; ++i) {
      digits[i] = i > count_ ? '=' : kBase64Digits[bits_ >> (18 - 6 * i) & 63];
    }
    text_->Write(digits, sizeof digits);
    bits_ = 0;
    count_ = 0;
  }

  Stream* text_;
  uint32_t bits_ = 0;
  int count_ = 0;
};

class Base64InStream : public Stream {
 public:
  using Stream::Read;
  using Stream::Write;
  explicit Base64InStream(Stream* text) : text_(text) {}

  void InitPosition() {}
  size_t Read(void* data, size_t size) override {
    auto* bytes = static_cast<uint8_t*>(data);
    size_t done = 0;
    for (; done < size && fill(); ++done) {
      count_ -= 8;
      bytes[done] = static_cast<uint8_t>(bits_ >> count_);
    }
    return done;
  }
  size_t Write(const void*, size_t) override {
    TVM_FFI_THROW(InternalError) << "this stream is only read";
    TVM_FFI_UNREACHABLE();
  }

 private:
  // Reads digits until there are 8 bits; false at the end.
  bool fill() {
    while (count_ < 8) {
      char digit = '=';
      if (text_->Read(&digit, 1) != 1 || digit == '=') return false;
      const char* place = digit == '\0' ? nullptr : std::strchr(kBase64Digits, digit);
      if (place == nullptr) return false;
      bits_ = bits_ << 6 | static_cast<uint32_t>(place - kBase64Digits);
      count_ += 6;
    }
    return true;
  }

  Stream* text_;
  uint32_t bits_ = 0;
  int count_ = 0;  // bits at hand
};

}  // namespace tvm::support
