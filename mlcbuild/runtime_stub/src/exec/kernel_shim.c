/* Linked into every kernel library: kernels report errors through two functions that they leave
 * undefined. The loader opens a kernel library with its symbols kept to itself, and may itself have
 * been loaded so, hence neither sees the other's functions. These forward through a slot instead,
 * which the loader finds by name and fills.
 *
 * A program that links kernels statically may hold this file several times: everything is weak, so
 * all copies share one slot. */
#include <stdint.h>

#if defined(_WIN32)
#define SHIM_SLOT __declspec(dllexport)
#define SHIM_LOCAL
#else
#define SHIM_SLOT __attribute__((weak, visibility("default")))
#define SHIM_LOCAL __attribute__((weak, visibility("hidden")))
#endif

typedef void (*mlcb_error_hook)(const char* kind, const char** parts, int32_t count);

SHIM_SLOT mlcb_error_hook mlcb_kernel_error_hook = 0;

SHIM_LOCAL void TVMFFIErrorSetRaisedFromCStrParts(const char* kind, const char** parts,
                                                  int32_t count) {
  if (mlcb_kernel_error_hook) mlcb_kernel_error_hook(kind, parts, count);
}

SHIM_LOCAL void TVMFFIErrorSetRaisedFromCStr(const char* kind, const char* message) {
  TVMFFIErrorSetRaisedFromCStrParts(kind, &message, 1);
}
