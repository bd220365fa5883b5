// A kernel library of a bundle, loaded or linked in, and wired to this runtime.
#pragma once
#include <string>

#include "core/os.h"
#include "exec/packed_abi.h"

namespace mlcb {

class KernelLibrary {
 public:
  // Kernels registered under the path's last part are taken before a file (core/linked_kernels.h).
  // Throws Error(MLCB_ERROR_BUNDLE) if the library cannot be loaded.
  explicit KernelLibrary(const std::string& path);
  ~KernelLibrary();
  KernelLibrary(const KernelLibrary&) = delete;
  KernelLibrary& operator=(const KernelLibrary&) = delete;

  // The kernel whose symbol is `symbol`; throws Error(MLCB_ERROR_BUNDLE) naming it.
  KernelFn kernel(const std::string& symbol) const;

 private:
  void* find(const char* symbol) const;  // nullptr if there is none

  std::string path_;
  std::string linked_as_;  // empty: it is library_
  SharedLibrary library_;
};

}  // namespace mlcb
