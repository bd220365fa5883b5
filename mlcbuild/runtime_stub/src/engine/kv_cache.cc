#include "engine/kv_cache.h"

#include <algorithm>
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
    regions_.emplace_back(static_cast<uint64_t>(kv.page_bytes) * static_cast<uint64_t>(pages),
                          "the KV cache of layer " + std::to_string(layer));
  }
  references_.assign(static_cast<size_t>(pages), 0);
  kept_.assign(static_cast<size_t>(pages), false);
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

SequenceId KvCache::add(const std::vector<int32_t>& pages) {
  Sequence sequence;
  sequence.pages = pages;
  sequence.length = static_cast<int64_t>(pages.size()) * kv_.page_size;
  sequences_.emplace(next_id_, std::move(sequence));
  for (int32_t page : pages) retain_page(page);
  return next_id_++;
}

void KvCache::remove(SequenceId id) {
  for (int32_t page : at(id).pages) release_page(page);
  sequences_.erase(id);
}

SequenceId KvCache::fork(SequenceId parent) {
  Sequence copy = at(parent);
  for (int32_t page : copy.pages) retain_page(page);
  sequences_.emplace(next_id_, std::move(copy));
  return next_id_++;
}

void KvCache::pop(SequenceId id, int64_t count) {
  Sequence& sequence = at(id);
  const int64_t length = sequence.length - count;
  if (count < 0 || length < 0 || (sequence.skip > 0 && length < kv_.window)) {
    throw Error(MLCB_ERROR_INTERNAL, "KV cache: cannot drop " + std::to_string(count) + " of " +
                                         std::to_string(sequence.length) + " tokens");
  }
  sequence.length = length;
  const size_t needed = static_cast<size_t>(pages_for(length) - sequence.skip);
  while (sequence.pages.size() > needed) {
    release_page(sequence.pages.back());
    sequence.pages.pop_back();
  }
}

void KvCache::drop_unseen(SequenceId id) {
  if (kv_.window == 0) return;
  Sequence& sequence = at(id);
  // The row at position `length` sees sinks, and tokens from length - window + 1 on.
  const int64_t first_seen = std::max<int64_t>(0, sequence.length - kv_.window + 1);
  const int64_t skip = std::max<int64_t>(0, first_seen / kv_.page_size - sink_pages());
  const int64_t count = skip - sequence.skip;
  if (count <= 0) return;
  const auto begin = sequence.pages.begin() + static_cast<ptrdiff_t>(sink_pages());
  for (int64_t i = 0; i < count; ++i) release_page(begin[static_cast<ptrdiff_t>(i)]);
  sequence.pages.erase(begin, begin + static_cast<ptrdiff_t>(count));
  sequence.skip = skip;
}

void KvCache::replace_page(SequenceId id, size_t index, int32_t page) {
  int32_t& held = at(id).pages.at(index);
  if (held == page) return;
  retain_page(page);
  release_page(held);
  held = page;
}

int64_t KvCache::most_pages_for(int64_t tokens, int64_t rows) const {
  const int64_t all = pages_for(tokens);
  if (kv_.window == 0) return all;
  // Sinks, the window, the rows of one step, and a page at each end that is only partly seen.
  return std::min(all, sink_pages() + pages_for(kv_.window + rows) + 2);
}

bool KvCache::must_copy_last_page(const Sequence& sequence) const {
  if (sequence.length % kv_.page_size == 0) return false;
  const size_t page = static_cast<size_t>(sequence.pages.back());
  return references_[page] > 1 || kept_[page];
}

int64_t KvCache::pages_to_take(const KvAppend& append) const {
  const Sequence& sequence = at(append.sequence);
  const int64_t grown = pages_for(sequence.length + append.rows) - sequence.skip;
  return grown - static_cast<int64_t>(sequence.pages.size()) +
         (append.rows > 0 && must_copy_last_page(sequence) ? 1 : 0);
}

int64_t KvCache::page_ids_after(const std::vector<KvAppend>& appends) const {
  int64_t total = 0;
  for (const KvAppend& append : appends) {
    const Sequence& sequence = at(append.sequence);
    total += pages_for(sequence.length + append.rows) - sequence.skip;
  }
  return total;
}

void KvCache::append(const std::vector<KvAppend>& appends, const KvTables& tables) {
  int64_t wanted = 0;
  for (const KvAppend& append : appends) wanted += pages_to_take(append);
  if (wanted > free_pages()) {
    throw Error(MLCB_ERROR_MEMORY, "the KV cache has " + std::to_string(free_pages()) +
                                       " free pages, " + std::to_string(wanted) + " are needed");
  }
  size_t row_index = 0;
  int32_t value_count = 0;
  for (const KvAppend& append : appends) {
    Sequence& sequence = at(append.sequence);
    if (append.rows > 0 && must_copy_last_page(sequence)) {
      const int32_t shared = sequence.pages.back();
      sequence.pages.back() = take_page();
      copy_page(shared, sequence.pages.back());
      release_page(shared);
    }
    for (int64_t row = 0; row < append.rows; ++row, ++row_index) {
      const int64_t offset = sequence.length % kv_.page_size;
      if (offset == 0) sequence.pages.push_back(take_page());
      tables.positions[row_index] = static_cast<int32_t>(sequence.length);
      tables.slots[row_index] =
          static_cast<int32_t>(sequence.pages.back() * kv_.page_size + offset);
      tables.page_begin[row_index] = value_count;
      if (tables.page_skip != nullptr) {
        tables.page_skip[row_index] = static_cast<int32_t>(sequence.skip);
      }
      ++sequence.length;
    }
    for (int32_t page : sequence.pages) tables.page_values[value_count++] = page;
  }
}

std::vector<Span> KvCache::layers() const {
  std::vector<Span> spans;
  for (const MemoryRegion& region : regions_) spans.push_back({region.data(), region.size()});
  return spans;
}

void KvCache::keep(int32_t page) {
  const size_t index = static_cast<size_t>(page);
  if (kept_[index]) return;
  kept_[index] = true;
  if (references_[index] == 0) ++idle_pages_;
}

void KvCache::unkeep(int32_t page) {
  const size_t index = static_cast<size_t>(page);
  if (!kept_[index]) return;
  kept_[index] = false;
  if (references_[index] > 0) return;
  --idle_pages_;
  free_.push_back(page);
}

int32_t KvCache::take_page() {
  const int32_t page = free_.back();
  free_.pop_back();
  references_[static_cast<size_t>(page)] = 1;
  return page;
}

void KvCache::retain_page(int32_t page) {
  const size_t index = static_cast<size_t>(page);
  if (references_[index]++ == 0 && kept_[index]) --idle_pages_;
}

void KvCache::release_page(int32_t page) {
  const size_t index = static_cast<size_t>(page);
  if (--references_[index] > 0) return;
  if (kept_[index]) {
    ++idle_pages_;
  } else {
    free_.push_back(page);
  }
}

void KvCache::copy_page(int32_t from, int32_t to) {
  const size_t bytes = static_cast<size_t>(kv_.page_bytes);
  for (const MemoryRegion& region : regions_) {
    std::memcpy(region.data() + bytes * static_cast<size_t>(to),
                region.data() + bytes * static_cast<size_t>(from), bytes);
  }
}

}  // namespace mlcb
