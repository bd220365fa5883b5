#include "exec/kernel_library.h"

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <vector>

#include "core/error.h"
#include "core/linked_kernels.h"
#include "exec/thread_pool.h"

namespace mlcb {
namespace {

// Scratch memory of one thread's kernels: blocks are kept and reused, smallest fit first.
class Workspace {
 public:
  void* allocate(uint64_t size) {
    Block* best = nullptr;
    for (Block& block : blocks_) {
      if (!block.used && block.size >= size && (!best || block.size < best->size)) best = &block;
    }
    if (best == nullptr) {
      const uint64_t rounded = std::max<uint64_t>((size + 4095) / 4096 * 4096, 4096);
      void* data = rounded >= size ? std::aligned_alloc(64, rounded) : nullptr;
      if (data == nullptr) return nullptr;
      blocks_.push_back({std::unique_ptr<void, Free>(data), rounded, false});
      best = &blocks_.back();
    }
    best->used = true;
    return best->data.get();
  }

  bool release(void* data) {
    for (Block& block : blocks_) {
      if (block.data.get() == data && block.used) {
        block.used = false;
        return true;
      }
    }
    return false;
  }

 private:
  struct Free {
    void operator()(void* data) const { std::free(data); }
  };
  struct Block {
    std::unique_ptr<void, Free> data;
    uint64_t size;
    bool used;
  };
  std::vector<Block> blocks_;
};

thread_local Workspace workspace;

// ---- the functions that kernels call, by the names of the slots that they are put into ----------

extern "C" {

void mlcb_backend_set_error(const char* kind, const char** parts, int32_t count) {
  std::string message = kind != nullptr ? std::string(kind) + ": " : std::string();
  for (int32_t i = 0; i < count; ++i) {
    if (parts[i] != nullptr) message += parts[i];
  }
  set_kernel_error(std::move(message));
}

int mlcb_backend_parallel_launch(ParallelTask task, void* closure, int32_t tasks) {
  ThreadPool* pool = ThreadPool::current();
  if (pool == nullptr) {
    set_kernel_error("a kernel ran outside an engine");
    return -1;
  }
  return pool->launch(task, closure, tasks);
}

int mlcb_backend_parallel_barrier(int, ParallelGroupEnv* env) {
  return ThreadPool::refuse_barrier(env);
}

void* mlcb_backend_alloc_workspace(int, int, uint64_t size, int, int) {
  return workspace.allocate(size);
}

int mlcb_backend_free_workspace(int, int, void* data) { return workspace.release(data) ? 0 : -1; }

}  // extern "C"

// Engines over one bundle share the loaded library and its slots: held while one is opened, filled
// or closed.
std::mutex& slots_mutex() {
  static std::mutex mutex;
  return mutex;
}

mlcb_linked_library* linked_libraries = nullptr;

bool is_linked(const std::string& file) {
  for (const mlcb_linked_library* at = linked_libraries; at != nullptr; at = at->next) {
    if (file == at->file) return true;
  }
  return false;
}

void* find_linked(const std::string& file, const char* symbol) {
  for (const mlcb_linked_library* at = linked_libraries; at != nullptr; at = at->next) {
    if (file != at->file) continue;
    for (size_t i = 0; i < at->count; ++i) {
      if (std::strcmp(at->symbols[i].name, symbol) == 0) return at->symbols[i].address;
    }
  }
  return nullptr;
}

// A filled slot is only read, as kernels may be running.
template <typename Function>
void fill_slot(void* address, Function function) {
  Function* slot = static_cast<Function*>(address);
  if (slot == nullptr || *slot == function) return;
  if (*slot != nullptr) {
    throw Error(MLCB_ERROR_UNSUPPORTED,
                "the kernels of this bundle are in use by another copy of the runtime\n"
                "why: one process may load a bundle's kernels through one libmlcb only");
  }
  *slot = function;
}

}  // namespace

KernelLibrary::KernelLibrary(const std::string& path) : path_(path) {
  const std::string file = path.substr(path.find_last_of('/') + 1);
  std::lock_guard<std::mutex> lock(slots_mutex());
  if (is_linked(file)) {
    linked_as_ = file;
  } else {
    library_ = SharedLibrary(path);
  }
  // Libraries that are linked in share their slots, which are weak: those of one are those of all.
  fill_slot(find("__TVMBackendAllocWorkspace"), &mlcb_backend_alloc_workspace);
  fill_slot(find("__TVMBackendFreeWorkspace"), &mlcb_backend_free_workspace);
  fill_slot(find("__TVMBackendParallelLaunch"), &mlcb_backend_parallel_launch);
  fill_slot(find("__TVMBackendParallelBarrier"), &mlcb_backend_parallel_barrier);
  fill_slot(find("mlcb_kernel_error_hook"), &mlcb_backend_set_error);
}

KernelLibrary::~KernelLibrary() {
  std::lock_guard<std::mutex> lock(slots_mutex());
  library_ = SharedLibrary();
}

void* KernelLibrary::find(const char* symbol) const {
  return linked_as_.empty() ? library_.find(symbol) : find_linked(linked_as_, symbol);
}

KernelFn KernelLibrary::kernel(const std::string& symbol) const {
  void* address = find(symbol.c_str());
  if (address == nullptr) {
    throw Error(MLCB_ERROR_BUNDLE, path_ + ": kernel " + symbol + " is missing\n" +
                                       "why: the plan and the library come from different builds");
  }
  return reinterpret_cast<KernelFn>(address);
}

}  // namespace mlcb

extern "C" void mlcb_register_kernels(mlcb_linked_library* library) {
  library->next = mlcb::linked_libraries;
  mlcb::linked_libraries = library;
}
