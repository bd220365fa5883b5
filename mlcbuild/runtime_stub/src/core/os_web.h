// The files that a host without a file system hands to the runtime.
#pragma once
#include <cstdint>
#include <string>

namespace mlcb {

// Creates or replaces a file of `size` bytes, all zero, and returns them: the host fills them in.
// Aligned to 64 bytes. Throws std::bad_alloc. What is mapped of an older one stays as it was.
uint8_t* create_file(const std::string& path, size_t size);
// Whether there was one. Its memory is freed when nothing maps it.
bool remove_file(const std::string& path);

}  // namespace mlcb
