#include "core/os_web.h"

#include <cstdlib>
#include <cstring>
#include <map>
#include <new>
#include <utility>

#include "core/error.h"
#include "core/os.h"

namespace mlcb {
namespace {

constexpr size_t kAlignment = 64;

uint8_t* allocate_zeroed(size_t size) {
  // The padding of what is almost all of the address space must not wrap around.
  if (size > SIZE_MAX - 2 * kAlignment) return nullptr;
  const size_t padded = (size + kAlignment - 1) / kAlignment * kAlignment;
  void* memory = std::aligned_alloc(kAlignment, padded);
  if (memory != nullptr) std::memset(memory, 0, padded);
  return static_cast<uint8_t*>(memory);
}

// A file's bytes follow a header of kAlignment bytes, which counts who needs them: the table of
// files and every MappedFile.
struct Header {
  uint32_t users;
};

Header* header_of(const uint8_t* data) {
  return reinterpret_cast<Header*>(const_cast<uint8_t*>(data) - kAlignment);
}

void release(const uint8_t* data) {
  Header* header = header_of(data);
  if (--header->users == 0) std::free(header);
}

struct File {
  uint8_t* data;
  size_t size;
};

std::map<std::string, File>& files() {
  static std::map<std::string, File> table;
  return table;
}

}  // namespace

uint8_t* create_file(const std::string& path, size_t size) {
  if (size > SIZE_MAX - 4 * kAlignment) throw std::bad_alloc();
  remove_file(path);  // first, so that its memory can be used again
  File& file = files()[path];
  uint8_t* memory = allocate_zeroed(kAlignment + size);
  if (memory == nullptr) {
    files().erase(path);
    throw std::bad_alloc();
  }
  file = {memory + kAlignment, size};
  header_of(file.data)->users = 1;
  return file.data;
}

bool remove_file(const std::string& path) {
  auto found = files().find(path);
  if (found == files().end()) return false;
  release(found->second.data);
  files().erase(found);
  return true;
}

MappedFile::MappedFile(const std::string& path) {
  auto found = files().find(path);
  if (found == files().end()) {
    throw Error(MLCB_ERROR_BUNDLE,
                path + ": file is missing\nwhy: the host has not handed it to the runtime");
  }
  data_ = found->second.data;
  size_ = found->second.size;
  ++header_of(data_)->users;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) release(data_);
}

void MappedFile::will_need() const {}

MemoryRegion::MemoryRegion(uint64_t size, const std::string& purpose)
    : size_(static_cast<size_t>(size)) {
  if (size == 0) return;
  if (size_ == size) data_ = allocate_zeroed(size_);
  if (data_ == nullptr) {
    throw Error(MLCB_ERROR_MEMORY,
                "cannot reserve " + std::to_string(size) + " bytes for " + purpose);
  }
}

MemoryRegion::~MemoryRegion() { std::free(data_); }

void MemoryRegion::prefer_large_pages() const {}

SharedLibrary::SharedLibrary(const std::string& path) {
  throw Error(MLCB_ERROR_BUNDLE, path +
                                     ": no kernels of that name are linked in\n"
                                     "why: WebAssembly has no libraries to load at run time\n"
                                     "hint: use the module that bundle.json names");
}

SharedLibrary::~SharedLibrary() = default;

void* SharedLibrary::find(const char*) const { return handle_; }  // of none, nothing

int64_t file_size(const std::string& path) {
  auto found = files().find(path);
  return found != files().end() ? static_cast<int64_t>(found->second.size) : -1;
}

std::string executable_path() { return {}; }

int usable_cpus() { return 1; }

}  // namespace mlcb
