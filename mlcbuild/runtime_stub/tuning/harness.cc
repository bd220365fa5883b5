// What a candidate of a tuner is linked with, so that it is timed as a step of a model would run
// it: on the runtime's own thread pool instead of TVM's, and with weights that are not in a cache.
//
// TVM calls `main`, which is here, as it would call the kernel. Weights lie in many copies, which
// the calls use in turn: when one comes up again, the others have driven it out of the caches, and
// its pages out of the translation buffers. (Flushing lines does the first, never the second.)
#include <sys/mman.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "exec/packed_abi.h"
#include "exec/thread_pool.h"

extern "C" {

// In the kernel's object, too, for the loader to fill; not if the kernel has nothing parallel.
__attribute__((weak, visibility("default"))) void* __TVMBackendParallelLaunch = nullptr;

int __tvm_ffi_kernel(void* self, const mlcb::PackedArg* args, int32_t count,
                     mlcb::PackedArg* result);

// In a source made for the candidate: threads, how often it will be called, the arguments that are
// weights (a bit each), and how many bytes of copies of them there should be.
extern const int32_t mlcb_tuning_threads;
extern const uint64_t mlcb_tuning_calls;
extern const uint64_t mlcb_tuning_weights;
extern const uint64_t mlcb_tuning_copies_bytes;
}

namespace mlcb {
namespace {

// TVM passes tensors as objects of its own: a header of this size, then the DLTensor.
constexpr int32_t kTensorObject = 70;
constexpr size_t kObjectHeader = 24;

const DLTensor* tensor_of(const PackedArg& arg) {
  if (arg.type_index == kPackedTensor) return static_cast<const DLTensor*>(arg.pointer);
  if (arg.type_index != kTensorObject) return nullptr;
  return reinterpret_cast<const DLTensor*>(static_cast<const char*>(arg.pointer) + kObjectHeader);
}

uint64_t bytes_of(const DLTensor& tensor) {
  uint64_t count = uint64_t{tensor.dtype.bits} * tensor.dtype.lanes;
  for (int32_t i = 0; i < tensor.ndim; ++i) count *= static_cast<uint64_t>(tensor.shape[i]);
  return (count + 7) / 8;
}

// Pages that are mapped one by one, as those of a file are, whose weights a bundle runs on.
class Pages {
 public:
  explicit Pages(uint64_t bytes) : bytes_(bytes) {
    void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) return;
#ifdef MADV_NOHUGEPAGE
    madvise(data, bytes, MADV_NOHUGEPAGE);
#endif
    data_ = static_cast<char*>(data);
  }
  ~Pages() {
    if (data_ != nullptr) munmap(data_, bytes_);
  }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  char* data() const { return data_; }

 private:
  uint64_t bytes_;
  char* data_ = nullptr;
};

uint64_t padded(uint64_t bytes) { return (bytes + 4095) / 4096 * 4096; }

// The state of one candidate. It goes with the last call: TVM never unloads a library.
class Harness {
 public:
  explicit Harness(const PackedArg* args, int32_t count) : pool_(mlcb_tuning_threads) {
    uint64_t one = 0;
    for (int32_t i = 0; i < count && i < 64; ++i) {
      const DLTensor* tensor = tensor_of(args[i]);
      if (tensor == nullptr || (mlcb_tuning_weights >> i & 1) == 0) continue;
      weights_.push_back({i, *tensor, bytes_of(*tensor), one});
      one += padded(weights_.back().bytes);
    }
    if (one == 0) return;
    copies_ = mlcb_tuning_copies_bytes / one + 1;
    stride_ = one;
    pages_ = std::make_unique<Pages>(copies_ * one);
    if (pages_->data() == nullptr) return;
    for (uint64_t copy = 0; copy < copies_; ++copy) {
      for (const Weight& weight : weights_) {
        const char* from = static_cast<const char*>(weight.tensor.data) + weight.tensor.byte_offset;
        std::memcpy(pages_->data() + copy * stride_ + weight.offset, from, weight.bytes);
      }
    }
  }

  int call(void* self, const PackedArg* args, int32_t count, PackedArg* result) {
    if (!weights_.empty() && pages_->data() == nullptr) return -1;  // no memory for the copies
    std::vector<PackedArg> changed(args, args + count);
    for (Weight& weight : weights_) {
      weight.tensor.data = pages_->data() + next_ * stride_ + weight.offset;
      weight.tensor.byte_offset = 0;
      changed[weight.place] = {kPackedTensor, 0, {}};
      changed[weight.place].pointer = &weight.tensor;
    }
    if (!weights_.empty()) next_ = (next_ + 1) % copies_;
    ++calls_;
    ThreadPool::Scope scope(&pool_);
    return __tvm_ffi_kernel(self, changed.data(), count, result);
  }

  bool done() const { return calls_ >= mlcb_tuning_calls; }

 private:
  struct Weight {
    int32_t place;
    DLTensor tensor;
    uint64_t bytes, offset;
  };
  ThreadPool pool_;
  std::vector<Weight> weights_;
  std::unique_ptr<Pages> pages_;
  uint64_t copies_ = 0, stride_ = 0, next_ = 0, calls_ = 0;
};

std::unique_ptr<Harness> harness;

int launch(ParallelTask task, void* closure, int32_t tasks) {
  return ThreadPool::current()->launch(task, closure, tasks);
}

}  // namespace
}  // namespace mlcb

extern "C" __attribute__((visibility("default"))) int __tvm_ffi_main(void* self,
                                                                     const mlcb::PackedArg* args,
                                                                     int32_t count,
                                                                     mlcb::PackedArg* result) {
  __TVMBackendParallelLaunch = reinterpret_cast<void*>(&mlcb::launch);
  if (!mlcb::harness) mlcb::harness = std::make_unique<mlcb::Harness>(args, count);
  const int code = mlcb::harness->call(self, args, count, result);
  if (mlcb::harness->done()) mlcb::harness.reset();
  return code;
}
