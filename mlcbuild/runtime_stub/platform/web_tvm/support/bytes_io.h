// Streams over bytes in memory, as TVM's runtime sources use them.
#pragma once
#include <tvm/ffi/error.h>
#include <tvm/ffi/string.h>
#include <tvm/support/io.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>

namespace tvm::support {

// Reads bytes that somebody else keeps.
class BytesInStream : public Stream {
 public:
  using Stream::Read;
  using Stream::Write;
  explicit BytesInStream(const std::string& bytes) : rest_(bytes) {}
  explicit BytesInStream(const ffi::Bytes& bytes) : rest_(bytes.data(), bytes.size()) {}

  size_t Read(void* data, size_t size) override {
    size = std::min(size, rest_.size());
    if (size > 0) std::memcpy(data, rest_.data(), size);
    rest_.remove_prefix(size);
    return size;
  }
  size_t Write(const void*, size_t) override {
    TVM_FFI_THROW(InternalError) << "this stream is only read";
    TVM_FFI_UNREACHABLE();
  }

 private:
  std::string_view rest_;
};

// Appends to a string that somebody else keeps.
class BytesOutStream : public Stream {
 public:
  using Stream::Read;
  using Stream::Write;
  explicit BytesOutStream(std::string* bytes) : bytes_(bytes) {}

  size_t Read(void*, size_t) override {
    TVM_FFI_THROW(InternalError) << "this stream is only written";
    TVM_FFI_UNREACHABLE();
  }
  size_t Write(const void* data, size_t size) override {
    bytes_->append(static_cast<const char*>(data), size);
    return size;
  }

 private:
  std::string* bytes_;
};

}  // namespace tvm::support
