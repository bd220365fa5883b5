// The forms of values in TVM's binary streams: little-endian numbers, and 64-bit lengths in front
// of whatever has one. This file is for WebAssembly, which is little-endian itself.
#pragma once
#include <dlpack/dlpack.h>
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/map.h>
#include <tvm/ffi/endian.h>
#include <tvm/ffi/string.h>
#include <tvm/support/io.h>

#include <cstdint>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

namespace tvm::support {

static_assert(TVM_FFI_IO_NO_ENDIAN_SWAP, "only for little-endian machines");

template <typename T>
struct Serializer<T, std::enable_if_t<std::is_arithmetic_v<T> || std::is_enum_v<T>>> {
  static constexpr bool enabled = true;
  static bool Read(Stream* stream, T* value) { return stream->Read(value, sizeof(T)) == sizeof(T); }
  static void Write(Stream* stream, const T& value) { stream->Write(&value, sizeof(T)); }
};

template <>
struct Serializer<DLDataType> {
  static constexpr bool enabled = true;
  static bool Read(Stream* stream, DLDataType* value) {
    return stream->Read(&value->code) && stream->Read(&value->bits) && stream->Read(&value->lanes);
  }
  static void Write(Stream* stream, const DLDataType& value) {
    stream->Write(value.code);
    stream->Write(value.bits);
    stream->Write(value.lanes);
  }
};

template <>
struct Serializer<DLDevice> {
  static constexpr bool enabled = true;
  static bool Read(Stream* stream, DLDevice* value) {
    return stream->Read(&value->device_type) && stream->Read(&value->device_id);
  }
  static void Write(Stream* stream, const DLDevice& value) {
    stream->Write(value.device_type);
    stream->Write(value.device_id);
  }
};

template <typename A, typename B>
struct Serializer<std::pair<A, B>> {
  static constexpr bool enabled = true;
  static bool Read(Stream* stream, std::pair<A, B>* value) {
    return stream->Read(&value->first) && stream->Read(&value->second);
  }
  static void Write(Stream* stream, const std::pair<A, B>& value) {
    stream->Write(value.first);
    stream->Write(value.second);
  }
};

namespace details {

// Bytes with their number in front.
template <typename T>
struct BytesForm {
  static constexpr bool enabled = true;
  static bool Read(Stream* stream, T* value) {
    uint64_t size = 0;
    if (!stream->Read(&size)) return false;
    std::string bytes(static_cast<size_t>(size), '\0');
    if (stream->Read(bytes.data(), bytes.size()) != bytes.size()) return false;
    *value = T(std::move(bytes));
    return true;
  }
  static void Write(Stream* stream, const T& value) {
    stream->Write(static_cast<uint64_t>(value.size()));
    stream->Write(static_cast<const void*>(value.data()), value.size());
  }
};

// Elements with their number in front; `add(element)` puts one that was read into a container.
template <typename Element, typename Add>
bool read_elements(Stream* stream, Add add) {
  uint64_t count = 0;
  if (!stream->Read(&count)) return false;
  for (; count > 0; --count) {
    Element element;
    if (!stream->Read(&element)) return false;
    add(std::move(element));
  }
  return true;
}

template <typename T>
void write_elements(Stream* stream, const T& container) {
  stream->Write(static_cast<uint64_t>(container.size()));
  for (const auto& element : container) stream->Write(element);
}

}  // namespace details

template <>
struct Serializer<std::string> : details::BytesForm<std::string> {};
template <>
struct Serializer<ffi::String> : details::BytesForm<ffi::String> {};
template <>
struct Serializer<ffi::Bytes> : details::BytesForm<ffi::Bytes> {};

template <typename T>
struct Serializer<std::vector<T>> {
  static constexpr bool enabled = true;
  static bool Read(Stream* stream, std::vector<T>* value) {
    value->clear();
    return details::read_elements<T>(stream,
                                     [value](T element) { value->push_back(std::move(element)); });
  }
  static void Write(Stream* stream, const std::vector<T>& value) {
    details::write_elements(stream, value);
  }
};

template <typename T>
struct Serializer<ffi::Array<T>> {
  static constexpr bool enabled = true;
  static bool Read(Stream* stream, ffi::Array<T>* value) {
    *value = ffi::Array<T>();
    return details::read_elements<T>(stream,
                                     [value](T element) { value->push_back(std::move(element)); });
  }
  static void Write(Stream* stream, const ffi::Array<T>& value) {
    stream->Write(static_cast<uint64_t>(value.size()));
    for (const T& element : value) stream->Write(element);
  }
};

template <typename K, typename V>
struct Serializer<std::unordered_map<K, V>> {
  static constexpr bool enabled = true;
  using Map = std::unordered_map<K, V>;
  static bool Read(Stream* stream, Map* value) {
    value->clear();
    return details::read_elements<std::pair<K, V>>(
        stream, [value](std::pair<K, V> element) { value->insert(std::move(element)); });
  }
  static void Write(Stream* stream, const Map& value) {
    stream->Write(static_cast<uint64_t>(value.size()));
    for (const auto& [key, element] : value) {
      stream->Write(key);
      stream->Write(element);
    }
  }
};

template <typename K, typename V>
struct Serializer<ffi::Map<K, V>> {
  static constexpr bool enabled = true;
  static bool Read(Stream* stream, ffi::Map<K, V>* value) {
    *value = ffi::Map<K, V>();
    return details::read_elements<std::pair<K, V>>(stream, [value](std::pair<K, V> element) {
      value->Set(std::move(element.first), std::move(element.second));
    });
  }
  static void Write(Stream* stream, const ffi::Map<K, V>& value) {
    stream->Write(static_cast<uint64_t>(value.size()));
    for (const auto& element : value) {
      stream->Write(element.first);
      stream->Write(element.second);
    }
  }
};

}  // namespace tvm::support
