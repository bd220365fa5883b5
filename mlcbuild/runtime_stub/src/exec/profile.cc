#include "exec/profile.h"

#include "core/decimal.h"
#include "core/json.h"

namespace mlcb {

size_t Profile::slot(std::vector<Entry>* entries, const std::string& name) {
  for (size_t i = 0; i < entries->size(); ++i) {
    if ((*entries)[i].name == name) return i;
  }
  entries->push_back({});
  entries->back().name = name;
  return entries->size() - 1;
}

size_t Profile::kernel_slot(const std::string& name) {
  std::lock_guard<std::mutex> lock(mutex_);
  return slot(&kernels_, name);
}

size_t Profile::function_slot(const std::string& name) {
  std::lock_guard<std::mutex> lock(mutex_);
  return slot(&functions_, name);
}

void Profile::add_run(size_t function, const std::vector<Call>& calls) {
  std::lock_guard<std::mutex> lock(mutex_);
  double total = 0;
  for (const Call& call : calls) {
    Entry& kernel = kernels_[call.kernel];
    ++kernel.count;
    kernel.seconds += call.seconds;
    total += call.seconds;
  }
  Entry& entry = functions_[function];
  ++entry.count;
  entry.seconds += total;
  entry.last_seconds = total;
}

void Profile::reset() {
  std::lock_guard<std::mutex> lock(mutex_);
  for (std::vector<Entry>* entries : {&kernels_, &functions_}) {
    for (Entry& entry : *entries) {
      entry.count = 0;
      entry.seconds = entry.last_seconds = 0;
    }
  }
}

std::vector<Profile::Entry> Profile::sorted(const std::vector<Entry>& entries) const {
  std::vector<Entry> found;
  std::lock_guard<std::mutex> lock(mutex_);
  for (const Entry& entry : entries) {
    if (entry.count == 0) continue;
    auto goes_before = [&](const Entry& other) {
      return entry.seconds != other.seconds ? entry.seconds > other.seconds
                                            : entry.name < other.name;
    };
    auto place = found.begin();  // there are hundreds at most
    while (place != found.end() && !goes_before(*place)) ++place;
    found.insert(place, entry);
  }
  return found;
}

std::string Profile::json() const {
  std::string out = "[";
  for (const Entry& entry : sorted(kernels_)) {
    out += out.size() > 1 ? ",{\"calls\":" : "{\"calls\":";
    out += std::to_string(entry.count);
    out += ",\"name\":" + json_quote(entry.name);
    out += ",\"seconds\":" + decimal(entry.seconds) + "}";
  }
  return out + "]";
}

std::string Profile::functions_json() const {
  std::string out = "[";
  for (const Entry& entry : sorted(functions_)) {
    out += out.size() > 1 ? ",{\"last_seconds\":" : "{\"last_seconds\":";
    out += decimal(entry.last_seconds);
    out += ",\"name\":" + json_quote(entry.name);
    out += ",\"runs\":" + std::to_string(entry.count);
    out += ",\"seconds\":" + decimal(entry.seconds) + "}";
  }
  return out + "]";
}

}  // namespace mlcb
