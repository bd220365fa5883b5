// The C layouts that kernels are compiled against: DLPack tensors and TVM's packed call.
#pragma once
#include <cstdint>

namespace mlcb {

struct DLDevice {
  int32_t type;  // 1: CPU
  int32_t id;
};

struct DLDataType {
  uint8_t code;  // 0 int, 1 uint, 2 float, 4 bfloat
  uint8_t bits;
  uint16_t lanes;
};

struct DLTensor {
  void* data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t* shape;
  int64_t* strides;  // nullptr: compact, row major
  uint64_t byte_offset;
};

struct PackedArg {
  int32_t type_index;
  uint32_t padding;
  union {
    int64_t int_value;
    double float_value;
    void* pointer;
  };
};

enum PackedType : int32_t { kPackedNone = 0, kPackedInt = 1, kPackedFloat = 3, kPackedTensor = 7 };

using KernelFn = int (*)(void* self, const PackedArg* args, int32_t count, PackedArg* result);

struct ParallelGroupEnv {
  void* sync_handle;
  int32_t num_task;
};
using ParallelTask = int (*)(int task_id, ParallelGroupEnv* env, void* closure);

static_assert(sizeof(PackedArg) == 16 && sizeof(DLTensor) == (sizeof(void*) == 8 ? 48 : 40),
              "layout of the packed ABI");

}  // namespace mlcb
