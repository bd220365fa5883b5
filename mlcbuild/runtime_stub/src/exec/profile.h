// Where the time of a step goes: calls and seconds of every kernel.
#pragma once
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

namespace mlcb {

// Functions add to it after each of their runs; anyone may read it meanwhile. Kernels of several
// functions (or plans) with one name are counted together. Thread-safe.
class Profile {
 public:
  // Where a name's figures are kept; the same one for the same name.
  size_t kernel_slot(const std::string& name);
  size_t function_slot(const std::string& name);

  // One run of a function: the seconds of its calls, by kernel slot.
  struct Call {
    size_t kernel;
    double seconds;
  };
  void add_run(size_t function, const std::vector<Call>& calls);
  void reset();  // forgets the figures, not the names

  // [{"calls":N,"name":"...","seconds":S}, ...], what took longest first; equal times by name.
  // Kernels that were never called are left out.
  std::string json() const;
  // What each function took in total and in its last run: the sums of its kernel calls.
  // [{"last_seconds":S,"name":"batch_prefill","runs":N,"seconds":S}, ...], as above.
  std::string functions_json() const;

 private:
  struct Entry {
    std::string name;
    uint64_t count = 0;
    double seconds = 0;
    double last_seconds = 0;
  };
  static size_t slot(std::vector<Entry>* entries, const std::string& name);
  std::vector<Entry> sorted(const std::vector<Entry>& entries) const;

  mutable std::mutex mutex_;
  std::vector<Entry> kernels_, functions_;
};

}  // namespace mlcb
