// Binary streams, as TVM's runtime sources use them; its package comes without this header.
#pragma once
#include <cstddef>

namespace tvm::support {

// How a T lies in a stream: `Write(Stream*, const T&)`, `Read(Stream*, T*)` (false at the end of
// the stream) and `enabled`. TVM's headers specialize it, too.
template <typename T, typename = void>
struct Serializer {
  static constexpr bool enabled = false;
};

class Stream {
 public:
  virtual ~Stream() = default;
  // Both give the number of bytes that were moved.
  virtual size_t Read(void* data, size_t size) = 0;
  virtual size_t Write(const void* data, size_t size) = 0;

  template <typename T>
  bool Read(T* value) {
    static_assert(Serializer<T>::enabled, "a type without a form in streams");
    return Serializer<T>::Read(this, value);
  }
  template <typename T>
  void Write(const T& value) {
    static_assert(Serializer<T>::enabled, "a type without a form in streams");
    Serializer<T>::Write(this, value);
  }

  template <typename T>
  bool ReadArray(T* values, size_t count) {
    for (T* value = values; value != values + count; ++value) {
      if (!Read(value)) return false;
    }
    return true;
  }
  template <typename T>
  void WriteArray(const T* values, size_t count) {
    for (const T* value = values; value != values + count; ++value) Write(*value);
  }
};

}  // namespace tvm::support
