/* Kernels that are linked into the program instead of being loaded as a library: generated C, which
 * includes this file, registers a table of them for each file name that a plan's variant has in
 * bundle.json. Symbols hold a digest of the plan, so several bundles may register the same name. */
#ifndef MLCB_CORE_LINKED_KERNELS_H_
#define MLCB_CORE_LINKED_KERNELS_H_

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct mlcb_linked_symbol {
  const char* name;
  void* address;
} mlcb_linked_symbol;

typedef struct mlcb_linked_library {
  const char* file; /* without folders */
  const mlcb_linked_symbol* symbols;
  size_t count;
  struct mlcb_linked_library* next; /* set by mlcb_register_kernels */
} mlcb_linked_library;

/* Before the first bundle is opened; the table stays registered. */
void mlcb_register_kernels(mlcb_linked_library* library);

/* WebAssembly only, where no program can ask: the proposals that the module is compiled for, which
 * its host therefore has, separated by spaces. */
extern const char* const mlcb_module_features;

#ifdef __cplusplus
}
#endif
#endif
