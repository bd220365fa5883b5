// The calls to the operating system that the runtime needs, and nothing else.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace mlcb {

#if defined(__wasm__)
// A host calls the runtime on its own thread, and puts in a bundle's folder what it wants used.
constexpr bool kHasThreads = false;
constexpr bool kBundlesMayBePartial = true;
#else
constexpr bool kHasThreads = true;
constexpr bool kBundlesMayBePartial = false;
#endif

// A whole file, mapped read-only and shared. Throws Error(MLCB_ERROR_BUNDLE) if it does not exist,
// MLCB_ERROR_IO if the system refuses.
class MappedFile {
 public:
  MappedFile() = default;
  explicit MappedFile(const std::string& path);
  MappedFile(MappedFile&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  MappedFile& operator=(MappedFile&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~MappedFile();

  const uint8_t* data() const { return data_; }
  size_t size() const { return size_; }
  std::string_view text() const { return {reinterpret_cast<const char*>(data_), size_}; }
  // Tells the system that all of it will be read soon.
  void will_need() const;

 private:
  const uint8_t* data_ = nullptr;
  size_t size_ = 0;
};

// Zeroed memory that costs nothing until it is written. Page-aligned. Throws
// Error(MLCB_ERROR_MEMORY) naming `purpose` and the size, also where no pointer reaches that far.
class MemoryRegion {
 public:
  MemoryRegion() = default;
  MemoryRegion(uint64_t size, const std::string& purpose);
  MemoryRegion(MemoryRegion&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  MemoryRegion& operator=(MemoryRegion&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~MemoryRegion();

  uint8_t* data() const { return data_; }
  size_t size() const { return size_; }
  // Asks for large pages, for memory that will be used from end to end.
  void prefer_large_pages() const;

 private:
  uint8_t* data_ = nullptr;
  size_t size_ = 0;
};

// A shared library with its symbols kept to itself; it stays loaded as long as the object lives.
class SharedLibrary {
 public:
  SharedLibrary() = default;
  explicit SharedLibrary(const std::string& path);  // throws Error(MLCB_ERROR_BUNDLE)
  SharedLibrary(SharedLibrary&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  SharedLibrary& operator=(SharedLibrary&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~SharedLibrary();

  void* find(const char* symbol) const;  // nullptr if there is none

 private:
  void* handle_ = nullptr;
};

// Size of a regular file in bytes; -1 if there is no such file. Throws Error(MLCB_ERROR_IO) if the
// system refuses to tell.
int64_t file_size(const std::string& path);
// Absolute path of the running program; empty if the system does not tell.
std::string executable_path();
// CPUs that this process may keep busy: affinity mask and cgroup quota taken into account, >= 1.
int usable_cpus();

}  // namespace mlcb
