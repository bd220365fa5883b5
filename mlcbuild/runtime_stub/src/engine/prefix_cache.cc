#include "engine/prefix_cache.h"

#include <algorithm>

namespace mlcb {

PrefixCache::PrefixCache(KvCache* cache, bool enabled) : cache_(cache), enabled_(enabled) {
  if (enabled_) nodes_.resize(static_cast<size_t>(cache->total_pages()));
}

uint64_t PrefixCache::key_of(int32_t parent, const int32_t* tokens) const {
  // FNV-1a over whole words: the tokens are compared afterwards, so a clash costs time only.
  uint64_t hash = 0xcbf29ce484222325u ^ static_cast<uint32_t>(parent);
  for (int64_t i = 0; i < cache_->page_size(); ++i) {
    hash = (hash ^ static_cast<uint32_t>(tokens[i])) * 0x100000001b3u;
    hash ^= hash >> 29;
  }
  return hash;
}

int32_t PrefixCache::find(int32_t parent, const int32_t* tokens, uint64_t key) const {
  const auto range = children_.equal_range(key);
  for (auto entry = range.first; entry != range.second; ++entry) {
    const Node& node = nodes_[static_cast<size_t>(entry->second)];
    if (node.parent == parent && std::equal(node.tokens.begin(), node.tokens.end(), tokens)) {
      return entry->second;
    }
  }
  return kRoot;
}

void PrefixCache::touch(int32_t page, uint64_t now) {
  Node& node = nodes_[static_cast<size_t>(page)];
  if (node.children == 0) {
    leaves_.erase({node.used, page});
    leaves_.emplace(now, page);
  }
  node.used = now;
}

std::vector<int32_t> PrefixCache::match(const int32_t* tokens, int64_t count) {
  std::vector<int32_t> pages;
  if (!enabled_) return pages;
  const uint64_t now = ++clock_;
  int32_t parent = kRoot;
  for (int64_t begin = 0; begin + cache_->page_size() <= count; begin += cache_->page_size()) {
    const int32_t page = find(parent, tokens + begin, key_of(parent, tokens + begin));
    if (page == kRoot) break;
    touch(page, now);
    pages.push_back(page);
    parent = page;
  }
  return pages;
}

int32_t PrefixCache::insert(int32_t parent, const int32_t* tokens, SequenceId sequence,
                            size_t index) {
  if (!enabled_) return kRoot;
  if (parent != kRoot && !nodes_[static_cast<size_t>(parent)].known) return kRoot;
  const uint64_t now = ++clock_;
  const uint64_t key = key_of(parent, tokens);
  const int32_t found = find(parent, tokens, key);
  if (found != kRoot) {
    cache_->replace_page(sequence, index, found);
    touch(found, now);
    return found;
  }
  const int32_t page = cache_->pages(sequence)[index];
  Node& node = nodes_[static_cast<size_t>(page)];
  node.known = true;
  node.parent = parent;
  node.children = 0;
  node.used = now;
  node.key = key;
  node.tokens.assign(tokens, tokens + cache_->page_size());
  children_.emplace(key, page);
  leaves_.emplace(now, page);
  if (parent != kRoot) {
    Node& above = nodes_[static_cast<size_t>(parent)];
    if (above.children++ == 0) leaves_.erase({above.used, parent});
    above.used = now;
  }
  cache_->keep(page);
  return page;
}

void PrefixCache::forget(int32_t page) {
  Node& node = nodes_[static_cast<size_t>(page)];
  const auto range = children_.equal_range(node.key);
  for (auto entry = range.first; entry != range.second; ++entry) {
    if (entry->second != page) continue;
    children_.erase(entry);
    break;
  }
  leaves_.erase({node.used, page});
  if (node.parent != kRoot) {
    Node& above = nodes_[static_cast<size_t>(node.parent)];
    if (--above.children == 0) leaves_.emplace(above.used, node.parent);
  }
  node.known = false;
  node.tokens.clear();
  cache_->unkeep(page);
}

int64_t PrefixCache::evict(int64_t count) {
  int64_t given_back = 0;
  // A leaf in use stays, and so does what lies above it: no sequence holds a page without those
  // before it, except behind a sliding window (then a later call finds them once it is done).
  auto leaf = leaves_.begin();
  while (given_back < count && leaf != leaves_.end()) {
    const int32_t page = leaf->second;
    if (cache_->held_by_sequence(page)) {
      ++leaf;
      continue;
    }
    const int32_t parent = nodes_[static_cast<size_t>(page)].parent;
    const bool parent_in_front =
        parent != kRoot && nodes_[static_cast<size_t>(parent)].children == 1;
    ++leaf;
    forget(page);
    ++given_back;
    // The parent is a leaf now, perhaps one that was used earlier than where the search stands.
    if (parent_in_front) leaf = leaves_.begin();
  }
  evictions_ += given_back;
  return given_back;
}

void PrefixCache::clear() { evict(cache_->idle_pages()); }

}  // namespace mlcb
