// A kernel library of a bundle, loaded and wired to this runtime.
#pragma once
#include <string>

#include "core/os.h"
#include "exec/packed_abi.h"

namespace mlcb {

class KernelLibrary {
 public:
  // Throws Error(MLCB_ERROR_BUNDLE) if the library cannot be loaded.
  explicit KernelLibrary(const std::string& path);
  ~KernelLibrary();
  KernelLibrary(const KernelLibrary&) = delete;
  KernelLibrary& operator=(const KernelLibrary&) = delete;

  // The kernel whose symbol is `symbol`; throws Error(MLCB_ERROR_BUNDLE) naming it.
  KernelFn kernel(const std::string& symbol) const;

 private:
  std::string path_;
  SharedLibrary library_;
};

}  // namespace mlcb
