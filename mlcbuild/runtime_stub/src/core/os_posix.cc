#include <dlfcn.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <utility>

#include "core/error.h"
#include "core/os.h"

namespace mlcb {
namespace {

std::string errno_text() { return std::strerror(errno); }

// A small text file of /proc or /sys; empty if it cannot be read.
std::string read_small_file(const std::string& path) {
  int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return {};
  std::string text(16384, '\0');
  ssize_t count = ::read(fd, &text[0], text.size());
  ::close(fd);
  text.resize(count > 0 ? static_cast<size_t>(count) : 0);
  return text;
}

// CPUs that a quota of `quota` microseconds in each `period` pays for, rounded up; 0: no limit.
int quota_cpus(long long quota, long long period) {
  if (quota <= 0 || period <= 0) return 0;
  return static_cast<int>((quota + period - 1) / period);
}

// The tightest quota from the group `path` up to the root of the hierarchy mounted at `mount`.
template <typename ReadQuota>
int tightest_quota(const std::string& mount, std::string path, ReadQuota read_quota) {
  int best = 0;
  for (;;) {
    int cpus = read_quota(mount + path);
    if (cpus > 0 && (best == 0 || cpus < best)) best = cpus;
    size_t slash = path.rfind('/');
    if (path.size() <= 1 || slash == std::string::npos) return best;
    path.resize(slash);
  }
}

int cgroup_quota() {
  int best = 0;
  std::string groups = read_small_file("/proc/self/cgroup");
  for (size_t begin = 0; begin < groups.size();) {
    size_t end = std::min(groups.find('\n', begin), groups.size());
    std::string line = groups.substr(begin, end - begin);
    begin = end + 1;
    size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    std::string path = line.substr(second + 1);
    int cpus = 0;
    if (controllers == ",,") {  // version 2
      cpus = tightest_quota("/sys/fs/cgroup", path, [](const std::string& folder) {
        long long quota = 0, period = 0;
        std::string text = read_small_file(folder + "/cpu.max");
        if (std::sscanf(text.c_str(), "%lld %lld", &quota, &period) != 2) return 0;
        return quota_cpus(quota, period);
      });
    } else if (controllers.find(",cpu,") != std::string::npos) {  // version 1
      cpus = tightest_quota("/sys/fs/cgroup/cpu", path, [](const std::string& folder) {
        long long quota = std::atoll(read_small_file(folder + "/cpu.cfs_quota_us").c_str());
        long long period = std::atoll(read_small_file(folder + "/cpu.cfs_period_us").c_str());
        return quota_cpus(quota, period);
      });
    }
    if (cpus > 0 && (best == 0 || cpus < best)) best = cpus;
  }
  return best;
}

}  // namespace

MappedFile::MappedFile(const std::string& path) {
  int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    bool missing = errno == ENOENT || errno == ENOTDIR;
    throw Error(missing ? MLCB_ERROR_BUNDLE : MLCB_ERROR_IO,
                path + (missing ? ": file is missing" : ": cannot open: " + errno_text()));
  }
  struct stat info;
  if (::fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    ::close(fd);
    throw Error(MLCB_ERROR_BUNDLE, path + ": is not a regular file");
  }
  size_ = static_cast<size_t>(info.st_size);
  if (size_ > 0) {
    void* address = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, fd, 0);
    if (address == MAP_FAILED) {
      std::string why = errno_text();
      ::close(fd);
      throw Error(MLCB_ERROR_IO, path + ": cannot map " + std::to_string(size_) + " bytes: " + why);
    }
    data_ = static_cast<const uint8_t*>(address);
  }
  ::close(fd);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<uint8_t*>(data_), size_);
}

void MappedFile::will_need() const {
  if (data_ != nullptr) ::madvise(const_cast<uint8_t*>(data_), size_, MADV_WILLNEED);
}

MemoryRegion::MemoryRegion(uint64_t size, const std::string& purpose)
    : size_(static_cast<size_t>(size)) {
  if (size == 0) return;
  if (size_ != size) {
    throw Error(MLCB_ERROR_MEMORY,
                "cannot reserve " + std::to_string(size) + " bytes for " + purpose);
  }
  void* address = ::mmap(nullptr, size_, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address == MAP_FAILED) {
    throw Error(MLCB_ERROR_MEMORY, "cannot reserve " + std::to_string(size) + " bytes for " +
                                       purpose + ": " + errno_text());
  }
  data_ = static_cast<uint8_t*>(address);
}

MemoryRegion::~MemoryRegion() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

void MemoryRegion::prefer_large_pages() const {
#if defined(MADV_HUGEPAGE)
  if (data_ != nullptr) ::madvise(data_, size_, MADV_HUGEPAGE);
#endif
}

SharedLibrary::SharedLibrary(const std::string& path) {
  // A path without a slash would be looked up in the system's folders.
  std::string name = path.find('/') == std::string::npos ? "./" + path : path;
  handle_ = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle_ == nullptr) {
    const char* why = ::dlerror();
    throw Error(MLCB_ERROR_BUNDLE, path + ": cannot load: " + (why ? why : "unknown reason"));
  }
}

SharedLibrary::~SharedLibrary() {
  if (handle_ != nullptr) ::dlclose(handle_);
}

void* SharedLibrary::find(const char* symbol) const {
  return handle_ != nullptr ? ::dlsym(handle_, symbol) : nullptr;
}

int64_t file_size(const std::string& path) {
  struct stat info;
  if (::stat(path.c_str(), &info) != 0) {
    if (errno == ENOENT || errno == ENOTDIR) return -1;
    throw Error(MLCB_ERROR_IO, path + ": cannot open: " + errno_text());
  }
  if (!S_ISREG(info.st_mode)) return -1;
  return static_cast<int64_t>(info.st_size);
}

std::string executable_path() {
#if defined(__linux__)
  std::string path(4096, '\0');
  ssize_t count = ::readlink("/proc/self/exe", &path[0], path.size());
  path.resize(count > 0 ? static_cast<size_t>(count) : 0);
  return path;
#else
  return {};
#endif
}

int usable_cpus() {
  int count = static_cast<int>(std::thread::hardware_concurrency());
#if defined(__linux__)
  cpu_set_t mask;
  if (::sched_getaffinity(0, sizeof(mask), &mask) == 0) count = CPU_COUNT(&mask);
#endif
  int quota = cgroup_quota();
  if (quota > 0) count = std::min(count, quota);
  return std::max(count, 1);
}

}  // namespace mlcb
