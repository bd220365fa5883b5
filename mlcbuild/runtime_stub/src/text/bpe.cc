#include "text/bpe.h"

#include <algorithm>
#include <cstring>
#include <functional>

#include "core/error.h"
#include "core/utf8.h"
#include "text/hash_table.h"

namespace mlcb {
namespace {

constexpr char kSpace[] = "\xE2\x96\x81";  // U+2581, how SentencePiece spells a space
constexpr uint32_t kSpaceColumn = 128, kOtherColumn = 191;
// Up to so many symbols a search through all of them beats a heap.
constexpr size_t kFewSymbols = 24;

uint64_t hash_pair(int32_t left, int32_t right) {
  const uint64_t key =
      static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  const uint64_t hash = (key ^ key >> 29) * 0x9E3779B97F4A7C15u;
  return hash ^ hash >> 32;
}

bool flag(const Json& json, std::string_view key) {
  const Json* value = json.find(key);
  return value != nullptr && !value->is_null() && value->as_bool();
}

void refuse_text(const Json& json, const char* key) {
  const Json* value = json.find(key);
  if (value != nullptr && !value->is_null() && !value->as_string().empty()) {
    throw Error(MLCB_ERROR_UNSUPPORTED,
                std::string("tokenizer: BPE option ") + key + " is not supported");
  }
}

bool is_space(std::string_view text, size_t at) {
  return text.size() - at >= 3 && std::memcmp(text.data() + at, kSpace, 3) == 0;
}

}  // namespace

BpeModel::BpeModel(const Json& options, const Vocab& vocab, const std::vector<Merge>& merges)
    : vocab_(&vocab) {
  read_options(options);
  load_starts();
  const std::vector<Edges> edges = find_edges();
  load_merges(merges, edges);
  // Where whole words are looked up first, one of them may be a token whatever the merges say.
  // Where characters vanish, those around them become neighbours.
  const bool vanish = unknown_ < 0 && !(byte_fallback_ && has_all_bytes_);
  if (!vocab.byte_level() && !ignore_merges_ && !vanish) find_joints(merges, edges);
}

void BpeModel::read_options(const Json& options) {
  refuse_text(options, "continuing_subword_prefix");
  refuse_text(options, "end_of_word_suffix");
  const Json* dropout = options.find("dropout");
  if (dropout != nullptr && !dropout->is_null() && dropout->as_double() != 0) {
    throw Error(MLCB_ERROR_UNSUPPORTED, "tokenizer: BPE option dropout is not supported");
  }
  ignore_merges_ = flag(options, "ignore_merges");
  fuse_unknown_ = flag(options, "fuse_unk");
  byte_fallback_ = flag(options, "byte_fallback");
  const Json* unknown = options.find("unk_token");
  if (unknown != nullptr && !unknown->is_null()) {
    unknown_ = vocab_->find(unknown->as_string());
    if (unknown_ < 0) {
      throw Error(MLCB_ERROR_BUNDLE, "tokenizer: unk_token " + json_quote(unknown->as_string()) +
                                         " is not in the vocabulary");
    }
  }
}

void BpeModel::load_starts() {
  has_all_bytes_ = true;
  static const char kHex[] = "0123456789ABCDEF";
  for (int byte = 0; byte < 256; ++byte) {
    const char c = static_cast<char>(byte);
    const char spelled[] = {'<', '0', 'x', kHex[byte >> 4], kHex[byte & 15], '>'};
    byte_ids_[byte] = vocab_->byte_level() ? vocab_->find_bytes(std::string_view(&c, 1))
                                           : vocab_->find(std::string_view(spelled, 6));
    has_all_bytes_ = has_all_bytes_ && byte_ids_[byte] >= 0;
    if (byte < 128) ascii_ids_[byte] = vocab_->find_bytes(std::string_view(&c, 1));
  }
  // With a token for every byte there is nothing to fall back from.
  if (vocab_->byte_level() && byte_fallback_ && !has_all_bytes_) {
    throw Error(MLCB_ERROR_UNSUPPORTED,
                "tokenizer: BPE option byte_fallback is not supported in a byte-level vocabulary "
                "that lacks bytes");
  }
  space_known_ = vocab_->find(kSpace) >= 0;
}

std::vector<BpeModel::Edges> BpeModel::find_edges() const {
  std::vector<Edges> edges(static_cast<size_t>(vocab_->size()));
  for (int32_t id = 0; id < vocab_->size(); ++id) {
    Edges& token = edges[static_cast<size_t>(id)];
    token.present = vocab_->has(id);
    if (!token.present) continue;
    const std::string_view bytes = vocab_->bytes(id);
    token.itself = !bytes.empty();
    if (bytes.empty()) continue;
    const uint8_t first = static_cast<uint8_t>(bytes[0]);
    token.first = first < 128          ? first
                  : is_space(bytes, 0) ? static_cast<uint8_t>(kSpaceColumn)
                                       : static_cast<uint8_t>(kOtherColumn);
    token.last = static_cast<uint8_t>(bytes.back());
  }
  for (const int32_t id : byte_ids_) {
    if (id >= 0) edges[static_cast<size_t>(id)].itself = false;
  }
  if (unknown_ >= 0) edges[static_cast<size_t>(unknown_)].itself = false;
  return edges;
}

void BpeModel::load_merges(const std::vector<Merge>& merges, const std::vector<Edges>& edges) {
  if (merges.size() > INT32_MAX) throw Error(MLCB_ERROR_BUNDLE, "tokenizer: too many merges");
  buckets_.assign(hash_capacity(merges.size()), Bucket());
  const size_t mask = buckets_.size() - 1;
  for (size_t i = 0; i < merges.size(); ++i) {
    const Merge& merge = merges[i];
    auto present = [&](int32_t id) {
      return id >= 0 && id < vocab_->size() && edges[static_cast<size_t>(id)].present;
    };
    if (!present(merge.left) || !present(merge.right) || !present(merge.merged)) {
      throw Error(MLCB_ERROR_BUNDLE, "tokenizer: merge " + std::to_string(i) +
                                         " of the model: a token of it is not in the vocabulary");
    }
    if (i + kPrefetchAhead < merges.size()) {
      const Merge& later = merges[i + kPrefetchAhead];
      prefetch(&buckets_[hash_pair(later.left, later.right) & mask]);
    }
    size_t slot = hash_pair(merge.left, merge.right) & mask;
    size_t probes = 0;
    for (; buckets_[slot].rank >= 0; slot = (slot + 1) & mask, ++probes) {
      if (probes >= kMaxProbes) fail_collisions();
      // Of equal pairs the last one counts.
      if (buckets_[slot].left == merge.left && buckets_[slot].right == merge.right) break;
    }
    longest_probe_ = std::max(longest_probe_, probes);
    buckets_[slot] = {merge.left, merge.right, static_cast<int32_t>(i), merge.merged};
  }
}

const BpeModel::Bucket* BpeModel::find_merge(int32_t left, int32_t right) const {
  const size_t mask = buckets_.size() - 1;
  size_t slot = hash_pair(left, right) & mask;
  for (size_t probes = 0; probes <= longest_probe_; ++probes, slot = (slot + 1) & mask) {
    const Bucket& bucket = buckets_[slot];
    if (bucket.rank < 0) return nullptr;
    if (bucket.left == left && bucket.right == right) return &bucket;
  }
  return nullptr;
}

// Text without pre-tokenizer is one long word. Two neighbouring characters that stand side by side
// in no merged token are never merged, so the word falls into parts there, mostly before spaces.
void BpeModel::find_joints(const std::vector<Merge>& merges, const std::vector<Edges>& edges) {
  std::memset(joints_, 0, sizeof(joints_));
  for (const Merge& merge : merges) {
    const Edges& left = edges[static_cast<size_t>(merge.left)];
    const Edges& right = edges[static_cast<size_t>(merge.right)];
    if (!left.itself || !right.itself) return;
    // It joins the last character of the left one to the first of the right one; those inside each
    // were joined by other merges.
    joints_[left.last][right.first / 64] |= uint64_t{1} << (right.first % 64);
  }
  splits_ = true;
}

size_t BpeModel::independent_end(std::string_view text, size_t from) const {
  if (!splits_) return text.size();
  for (size_t at = from + 1; at < text.size(); ++at) {
    const uint8_t first = static_cast<uint8_t>(text[at]);
    uint32_t column = first;
    if (first < 128) {
      // An unknown character may fuse with what stands before it.
      if (ascii_ids_[first] < 0) continue;
    } else if (first == 0xE2 && is_space(text, at) && space_known_) {
      column = kSpaceColumn;
    } else {
      continue;
    }
    const uint64_t* row = joints_[static_cast<uint8_t>(text[at - 1])];
    if ((row[column / 64] >> (column % 64) & 1) == 0) return at;
  }
  return text.size();
}

void BpeModel::start_bytes(std::string_view word, std::vector<int32_t>* start) const {
  bool in_unknown = false;
  for (const char c : word) {
    int32_t id = byte_ids_[static_cast<uint8_t>(c)];
    const bool unknown = id < 0;
    if (unknown) {
      if (unknown_ < 0 || (in_unknown && fuse_unknown_)) continue;
      id = unknown_;
    }
    in_unknown = unknown;
    start->push_back(id);
  }
}

void BpeModel::start_chars(std::string_view word, std::vector<int32_t>* start) const {
  // An unknown token is written when the next known character is met, so bytes that were fallen
  // back to in between come before it: so does the reference.
  bool pending = false;
  const char* end = word.data() + word.size();
  for (const char* p = word.data(); p != end;) {
    const uint8_t lead = static_cast<uint8_t>(*p);
    uint32_t size = 1;
    int32_t id = -1;
    if (lead < 128) {
      id = ascii_ids_[lead];
    } else {
      const Utf8Char c = utf8_decode(p, end);
      if (c.size != 0) {  // a byte that is not UTF-8 is no character of the vocabulary
        size = c.size;
        id = vocab_->find_bytes(std::string_view(p, size));
      }
    }
    const char* char_begin = p;
    p += size;
    if (id >= 0) {
      if (pending) start->push_back(unknown_);
      pending = false;
      start->push_back(id);
      continue;
    }
    if (byte_fallback_) {
      bool complete = true;
      for (const char* byte = char_begin; byte != p; ++byte) {
        complete = complete && byte_ids_[static_cast<uint8_t>(*byte)] >= 0;
      }
      if (complete) {
        for (const char* byte = char_begin; byte != p; ++byte) {
          start->push_back(byte_ids_[static_cast<uint8_t>(*byte)]);
        }
        continue;
      }
    }
    if (unknown_ < 0) continue;
    if (pending && !fuse_unknown_) start->push_back(unknown_);
    pending = true;
  }
  if (pending) start->push_back(unknown_);
}

void BpeModel::encode(std::string_view word, Scratch* scratch, std::vector<int32_t>* ids) const {
  if (ignore_merges_) {
    const int32_t whole = vocab_->find_bytes(word);
    if (whole >= 0) {
      ids->push_back(whole);
      return;
    }
  }
  auto& start = scratch->start;
  start.clear();
  if (vocab_->byte_level()) {
    start_bytes(word, &start);
  } else {
    start_chars(word, &start);
  }
  if (start.size() <= kFewSymbols) {
    merge_few(&start);
    ids->insert(ids->end(), start.begin(), start.end());
    return;
  }
  merge_many(scratch);
  for (int32_t i = 0; i >= 0; i = scratch->symbols[static_cast<size_t>(i)].next) {
    ids->push_back(scratch->symbols[static_cast<size_t>(i)].id);
  }
}

// Merges the pair of lowest rank, leftmost first, until none is left.
void BpeModel::merge_few(std::vector<int32_t>* symbols) const {
  const Bucket* merges[kFewSymbols];  // of each symbol with the next one; nullptr: none
  int32_t* ids = symbols->data();
  size_t count = symbols->size();
  if (count < 2) return;
  for (size_t i = 0; i + 1 < count; ++i) merges[i] = find_merge(ids[i], ids[i + 1]);
  for (;;) {
    size_t best = count;
    int32_t rank = INT32_MAX;
    for (size_t i = 0; i + 1 < count; ++i) {
      if (merges[i] != nullptr && merges[i]->rank < rank) {
        rank = merges[i]->rank;
        best = i;
      }
    }
    if (best == count) break;
    ids[best] = merges[best]->merged;
    --count;
    for (size_t i = best + 1; i < count; ++i) {
      ids[i] = ids[i + 1];
      merges[i - 1] = merges[i];
    }
    if (best > 0) merges[best - 1] = find_merge(ids[best - 1], ids[best]);
    if (best + 1 < count) merges[best] = find_merge(ids[best], ids[best + 1]);
  }
  symbols->resize(count);
}

// The same with a heap of candidates.
void BpeModel::merge_many(Scratch* scratch) const {
  auto& symbols = scratch->symbols;
  auto& heap = scratch->heap;
  symbols.clear();
  heap.clear();
  for (const int32_t id : scratch->start) {
    const int32_t index = static_cast<int32_t>(symbols.size());
    symbols.push_back({id, index - 1, index + 1});
  }
  symbols.back().next = -1;
  auto merge_at = [&](int32_t position) -> const Bucket* {
    const auto& left = symbols[static_cast<size_t>(position)];
    if (left.next < 0) return nullptr;
    return find_merge(left.id, symbols[static_cast<size_t>(left.next)].id);
  };
  auto candidate = [](const Bucket& bucket, int32_t position) {
    return static_cast<uint64_t>(bucket.rank) << 32 | static_cast<uint32_t>(position);
  };
  const std::greater<uint64_t> later;
  for (size_t i = 0; i + 1 < symbols.size(); ++i) {
    if (const Bucket* found = merge_at(static_cast<int32_t>(i))) {
      heap.push_back(candidate(*found, static_cast<int32_t>(i)));
    }
  }
  std::make_heap(heap.begin(), heap.end(), later);
  while (!heap.empty()) {
    const uint64_t top = heap.front();
    std::pop_heap(heap.begin(), heap.end(), later);
    heap.pop_back();
    const int32_t position = static_cast<int32_t>(top & UINT32_MAX);
    auto& left = symbols[static_cast<size_t>(position)];
    if (left.id < 0) continue;  // merged into another one since
    const Bucket* merge = merge_at(position);
    if (merge == nullptr || candidate(*merge, position) != top) continue;  // so was its neighbour
    auto& right = symbols[static_cast<size_t>(left.next)];
    left.id = merge->merged;
    left.next = right.next;
    right.id = -1;
    if (left.next >= 0) symbols[static_cast<size_t>(left.next)].previous = position;
    for (const int32_t changed : {left.previous, position}) {
      if (changed < 0) continue;
      if (const Bucket* found = merge_at(changed)) {
        heap.push_back(candidate(*found, changed));
        std::push_heap(heap.begin(), heap.end(), later);
      }
    }
  }
}

}  // namespace mlcb
