// What this machine can do at most: reads of memory, arithmetic in registers.
#pragma once
#include <string>
#include <vector>

#include "exec/thread_pool.h"

namespace mlcb {

// Measures with all threads of the pool, for about half a second and with 256 MiB of memory, and
// keeps the best of several runs. Arithmetic is that of kernels for a CPU with the flags in
// `capability`: the products of float32 and, if int8 is set, those of int8. As JSON:
//   {"float":{"gops":G,"instructions":"avx512f"},"int8":{...},"read_gbytes":B,"threads":N}
// in 1e9 operations (a multiply-add counts as two) and 1e9 bytes a second. float and int8 are null
// where there is no loop for the flags. Throws Error(MLCB_ERROR_MEMORY).
std::string measure_limits(ThreadPool* pool, const std::vector<std::string>& capability, bool int8);

}  // namespace mlcb
