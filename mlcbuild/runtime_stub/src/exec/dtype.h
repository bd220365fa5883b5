// Names and sizes of element types.
#pragma once
#include <cstdint>
#include <string>

#include "core/error.h"
#include "exec/packed_abi.h"

namespace mlcb {

// Throws Error(MLCB_ERROR_BUNDLE) on a name that docs/formats.md does not know.
inline DLDataType parse_dtype(const std::string& name, const std::string& where) {
  static const struct {
    const char* name;
    DLDataType dtype;
  } kTypes[] = {{"float32", {2, 32, 1}}, {"float16", {2, 16, 1}}, {"bfloat16", {4, 16, 1}},
                {"int32", {0, 32, 1}},   {"uint32", {1, 32, 1}},  {"int8", {0, 8, 1}},
                {"uint8", {1, 8, 1}},    {"int64", {0, 64, 1}},   {"int16", {0, 16, 1}},
                {"uint16", {1, 16, 1}}};
  for (const auto& type : kTypes) {
    if (name == type.name) return type.dtype;
  }
  throw Error(MLCB_ERROR_BUNDLE, where + ": unknown element type " + name);
}

inline int64_t element_bytes(DLDataType dtype) { return int64_t{dtype.bits} / 8 * dtype.lanes; }

}  // namespace mlcb
