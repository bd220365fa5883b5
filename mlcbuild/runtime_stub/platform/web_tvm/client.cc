// What the browser's client asks of a library besides TVM's own functions: memory of the module,
// functions of JavaScript as TVM's, weights from bytes. Names and types are the client's.
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/reflection/registry.h>
#include <tvm/ffi/string.h>
#include <tvm/runtime/c_backend_api.h>
#include <tvm/runtime/logging.h>
#include <tvm/runtime/tensor.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

// Both are the client's: calls and drops a function of JavaScript.
extern "C" int TVMFFIWasmSafeCall(void* self, const TVMFFIAny* args, int32_t count,
                                  TVMFFIAny* result);
extern "C" void TVMFFIWasmFunctionDeleter(void* self);

extern "C" {

void* TVMWasmAllocSpace(int size) { return std::malloc(static_cast<size_t>(size)); }

void TVMWasmFreeSpace(void* data) { std::free(data); }

int TVMFFIWasmFunctionCreate(void* self, TVMFFIObjectHandle* out) {
  return TVMFFIFunctionCreate(self, TVMFFIWasmSafeCall, TVMFFIWasmFunctionDeleter, out);
}

// The text stays until the next call.
const char* TVMFFIWasmGetLastError() {
  static std::string text;
  text = tvm::ffi::details::MoveFromSafeCallRaised().what();
  return text.c_str();
}

// One thread does all tasks of a kernel for the CPU.
int TVMBackendParallelLaunch(FTVMParallelLambda task, void* data, int) {
  TVMParallelGroupEnv env{};
  env.num_task = 1;
  return task(0, &env, data);
}

int TVMBackendParallelBarrier(int, TVMParallelGroupEnv*) { return 0; }
}

namespace tvm::runtime {

namespace detail {

[[noreturn]] void LogFatalImpl(const std::string& file, int line, const std::string& message) {
  std::fprintf(stderr, "%s:%d: %s\n", file.c_str(), line, message.c_str());
  std::abort();
}

void LogMessageImpl(const std::string& file, int line, int level, const std::string& message) {
  std::fprintf(level < TVM_LOG_LEVEL_WARNING ? stdout : stderr, "%s:%d: %s\n", file.c_str(), line,
               message.c_str());
}

}  // namespace detail

namespace {

void check_float32_on_cpu(const Tensor& tensor) {
  TVM_FFI_ICHECK_EQ(tensor->device.device_type, kDLCPU);
  TVM_FFI_ICHECK(tensor->dtype == (DLDataType{kDLFloat, 32, 1}) && tensor.IsContiguous());
}

size_t element_count(const Tensor& tensor) {
  size_t count = 1;
  for (int i = 0; i < tensor->ndim; ++i) count *= static_cast<size_t>(tensor->shape[i]);
  return count;
}

// bfloat16 numbers are the upper halves of float32 ones. From the last to the first, so that both
// may begin at the same place.
void widen(const char* from, char* to, size_t count) {
  while (count-- > 0) {
    uint32_t bits = 0;
    std::memcpy(reinterpret_cast<char*>(&bits) + 2, from + 2 * count, 2);
    std::memcpy(to + 4 * count, &bits, 4);
  }
}

char* data_of(const Tensor& tensor) {
  return static_cast<char*>(tensor->data) + tensor->byte_offset;
}

// A weight as it lies in a shard.
void decode_storage(Tensor tensor, TVMFFIByteArray* bytes, const ffi::String& format,
                    const ffi::String& dtype) {
  if (format != "f32-to-bf16" || dtype != "float32") {
    tensor.CopyFromBytes(bytes->data, bytes->size);
    return;
  }
  check_float32_on_cpu(tensor);
  const size_t count = element_count(tensor);
  TVM_FFI_ICHECK_EQ(bytes->size, 2 * count);
  widen(bytes->data, data_of(tensor), count);
}

void decode_bf16_in_place(Tensor tensor, int64_t size) {
  check_float32_on_cpu(tensor);
  const size_t count = element_count(tensor);
  TVM_FFI_ICHECK_EQ(static_cast<uint64_t>(size), 2 * count);
  widen(data_of(tensor), data_of(tensor), count);
}

void concat_arrays(ffi::PackedArgs args, ffi::Any* result) {
  ffi::Array<ffi::Any> all;
  for (int i = 0; i < args.size(); ++i) {
    for (const ffi::Any& value : args[i].cast<ffi::Array<ffi::Any>>()) all.push_back(value);
  }
  *result = all;
}

// Rows of several matrices of one width, one below the other.
void concat_embeddings(ffi::PackedArgs args, ffi::Any* result) {
  std::vector<Tensor> parts;
  int64_t rows = 0;
  for (int i = 0; i < args.size(); ++i) {
    parts.push_back(args[i].cast<Tensor>());
    TVM_FFI_ICHECK_EQ(parts[i]->ndim, 2);
    TVM_FFI_ICHECK_EQ(parts[i]->shape[1], parts[0]->shape[1]);
    rows += parts[i]->shape[0];
  }
  TVM_FFI_ICHECK(!parts.empty());
  const Tensor& first = parts.front();
  Tensor all = Tensor::Empty({rows, first->shape[1]}, first->dtype, first->device);
  uint64_t offset = 0;
  for (const Tensor& part : parts) {
    DLTensor place = *all.operator->();
    place.shape = part->shape;
    place.byte_offset = offset;
    Tensor::CopyFromTo(part.operator->(), &place);
    offset += ffi::GetDataSize(*part.operator->());
  }
  *result = all;
}

ffi::Bytes to_bytes(Tensor tensor) {
  std::string bytes(ffi::GetDataSize(*tensor.operator->()), '\0');
  tensor.CopyToBytes(bytes.data(), bytes.size());
  return ffi::Bytes(std::move(bytes));
}

}  // namespace

TVM_FFI_STATIC_INIT_BLOCK() {
  ffi::reflection::GlobalDef()
      .def("tvmjs.array.decode_storage", decode_storage)
      .def("tvmjs.array.decode_bf16_to_f32_inplace", decode_bf16_in_place)
      .def_packed("tvmjs.runtime.ArrayConcat", concat_arrays)
      .def_packed("tvmjs.runtime.ConcatEmbeddings", concat_embeddings)
      .def("tvmjs.runtime.TensorCopyFromBytes",
           [](Tensor tensor, TVMFFIByteArray* bytes) {
             tensor.CopyFromBytes(bytes->data, bytes->size);
           })
      .def("tvmjs.runtime.TensorCopyToBytes", to_bytes);
}

}  // namespace tvm::runtime
