#include "engine/kv_cache.h"

#include <cstring>

#include "core/error.h"

namespace mlcb {

KvCache::KvCache(const PlanKv& kv, int64_t pages) : kv_(kv) {
  if (pages < 1 || pages > INT32_MAX / kv.page_size) {
    throw Error(MLCB_ERROR_ARGUMENT, "a KV cache of " + std::to_string(pages) +
                                         " pages is not possible (at most " +
                                         std::to_string(INT32_MAX / kv.page_size) + ")");
  }
  for (int64_t layer = 0; layer < kv.layers; ++layer) {
    regions_.emplace_back(static_cast<size_t>(kv.page_bytes * pages),
                          "the KV cache of layer " + std::to_string(layer));
  }
  references_.assign(static_cast<size_t>(pages), 0);
  // Popped from the back: low pages are used first, so a mostly idle cache stays small.
  for (int64_t page = pages - 1; page >= 0; --page) free_.push_back(static_cast<int32_t>(page));
}

KvCache::Sequence& KvCache::at(SequenceId id) {
  return const_cast<Sequence&>(static_cast<const KvCache*>(this)->at(id));
}

const KvCache::Sequence& KvCache::at(SequenceId id) const {
  auto found = sequences_.find(id);
  if (found != sequences_.end()) return found->second;
  throw Error(MLCB_ERROR_INTERNAL, "KV cache: no sequence " + std::to_string(id));
}

SequenceId KvCache::add() {
  sequences_.emplace(next_id_, Sequence());
  return next_id_++;
}

void KvCache::remove(SequenceId id) {
  for (int32_t page : at(id).pages) release_page(page);
  sequences_.erase(id);
}

SequenceId KvCache::fork(SequenceId parent) {
  Sequence copy = at(parent);
  for (int32_t page : copy.pages) ++references_[static_cast<size_t>(page)];
  sequences_.emplace(next_id_, std::move(copy));
  return next_id_++;
}

void KvCache::pop(SequenceId id, int64_t count) {
  Sequence& sequence = at(id);
  if (count < 0 || count > sequence.length) {
    throw Error(MLCB_ERROR_INTERNAL, "KV cache: cannot drop " + std::to_string(count) + " of " +
                                         std::to_string(sequence.length) + " tokens");
  }
  sequence.length -= count;
  const size_t needed = static_cast<size_t>(pages_for(sequence.length));
  while (sequence.pages.size() > needed) {
    release_page(sequence.pages.back());
    sequence.pages.pop_back();
  }
}

int64_t KvCache::length(SequenceId id) const { return at(id).length; }

bool KvCache::must_copy_last_page(const Sequence& sequence) const {
  return sequence.length % kv_.page_size != 0 &&
         references_[static_cast<size_t>(sequence.pages.back())] > 1;
}

int64_t KvCache::pages_to_take(const KvAppend& append) const {
  const Sequence& sequence = at(append.sequence);
  const int64_t grown = pages_for(sequence.length + append.rows);
  return grown - static_cast<int64_t>(sequence.pages.size()) +
         (append.rows > 0 && must_copy_last_page(sequence) ? 1 : 0);
}

int64_t KvCache::page_ids_after(const std::vector<KvAppend>& appends) const {
  int64_t total = 0;
  for (const KvAppend& append : appends) {
    total += pages_for(at(append.sequence).length + append.rows);
  }
  return total;
}

void KvCache::append(const std::vector<KvAppend>& appends, int32_t* positions, int32_t* slots,
                     int32_t* page_begin, int32_t* page_values) {
  int64_t wanted = 0;
  for (const KvAppend& append : appends) wanted += pages_to_take(append);
  if (wanted > free_pages()) {
    throw Error(MLCB_ERROR_MEMORY, "the KV cache has " + std::to_string(free_pages()) +
                                       " free pages, " + std::to_string(wanted) + " are needed");
  }
  int32_t value_count = 0;
  for (const KvAppend& append : appends) {
    Sequence& sequence = at(append.sequence);
    if (append.rows > 0 && must_copy_last_page(sequence)) {
      const int32_t shared = sequence.pages.back();
      sequence.pages.back() = take_page();
      copy_page(shared, sequence.pages.back());
      release_page(shared);
    }
    for (int64_t row = 0; row < append.rows; ++row) {
      const int64_t offset = sequence.length % kv_.page_size;
      if (offset == 0) sequence.pages.push_back(take_page());
      *positions++ = static_cast<int32_t>(sequence.length);
      *slots++ = static_cast<int32_t>(sequence.pages.back() * kv_.page_size + offset);
      *page_begin++ = value_count;
      ++sequence.length;
    }
    for (int32_t page : sequence.pages) page_values[value_count++] = page;
  }
}

std::vector<Span> KvCache::layers() const {
  std::vector<Span> spans;
  for (const MemoryRegion& region : regions_) spans.push_back({region.data(), region.size()});
  return spans;
}

int32_t KvCache::take_page() {
  const int32_t page = free_.back();
  free_.pop_back();
  references_[static_cast<size_t>(page)] = 1;
  return page;
}

void KvCache::release_page(int32_t page) {
  if (--references_[static_cast<size_t>(page)] == 0) free_.push_back(page);
}

void KvCache::copy_page(int32_t from, int32_t to) {
  const size_t bytes = static_cast<size_t>(kv_.page_bytes);
  for (const MemoryRegion& region : regions_) {
    std::memcpy(region.data() + bytes * static_cast<size_t>(to),
                region.data() + bytes * static_cast<size_t>(from), bytes);
  }
}

}  // namespace mlcb
