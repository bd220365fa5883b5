#include "text/candidates.h"

#include <algorithm>
#include <cmath>
#include <functional>

namespace mlcb {
namespace {

bool ranks_higher(const Candidates::Token& a, const Candidates::Token& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
}

// For few tokens; std::sort would take kilobytes of code.
template <typename Iterator>
void sort_few(Iterator begin, Iterator end) {
  for (Iterator it = begin; it != end; ++it) {
    const Candidates::Token token = *it;
    Iterator hole = it;
    for (; hole != begin && ranks_higher(token, *(hole - 1)); --hole) *hole = *(hole - 1);
    *hole = token;
  }
}

// The least weight that is at least a share (0..1) of the total.
uint64_t part_of(uint64_t total, float share) {
  const double part = std::ceil(static_cast<double>(share) * static_cast<double>(total));
  return std::min(static_cast<uint64_t>(part), total);
}

// Which part of the weight is drawn: 0..total-1.
uint64_t drawn_of(uint64_t total, double share) {
  const uint64_t drawn = static_cast<uint64_t>(share * static_cast<double>(total));
  return std::min(drawn, total - 1);
}

// Where the running sum of the weights exceeds *drawn; takes the sum before that from it.
size_t find_drawn(const uint64_t* weights, uint64_t* drawn) {
  size_t i = 0;
  while (weights[i] <= *drawn) *drawn -= weights[i++];
  return i;
}

void weigh_one_chunk(const float* logits, const Weighing& weighing, uint64_t* weights) {
  weigh_chunk(logits, weighing.greatest, weighing.scale, weighing.least, weights);
}

}  // namespace

float Candidates::start(const LogitRow& row) {
  row_ = row;
  const float greatest = row_.group_maxima(&maxima_);
  if (!(greatest > kGreatestLogit)) return greatest;
  finite_.assign(row.values, row.values + row.count);
  for (float& logit : finite_) logit = logit > kGreatestLogit ? kNoLogit : logit;
  row_.values = finite_.data();
  return row_.group_maxima(&maxima_);
}

int32_t Candidates::first() const {
  const auto group = std::max_element(maxima_.begin(), maxima_.end());  // the first of equal ones
  const size_t chunk = static_cast<size_t>(group - maxima_.begin()) / LogitRow::kLanes;
  float buffer[LogitRow::kChunk];
  const float* logits = row_.chunk(chunk, buffer);
  const float* found = std::find(logits, logits + LogitRow::kChunk, *group);
  return static_cast<int32_t>(chunk * LogitRow::kChunk + static_cast<size_t>(found - logits));
}

std::vector<Candidates::Token> Candidates::first(size_t count) {
  collect(bound_of_rank(count));
  weights_.assign(ids_.size(), 0);
  rank_all();
  const size_t found = std::min(count, ranked_.size());
  const auto end = ranked_.begin() + static_cast<ptrdiff_t>(found);
  if (end != ranked_.end()) std::nth_element(ranked_.begin(), end, ranked_.end(), ranks_higher);
  sort_few(ranked_.begin(), end);
  return std::vector<Token>(ranked_.begin(), end);
}

// A lower bound of the logit with that rank (1: first): so many groups have a maximum of that or
// more.
float Candidates::bound_of_rank(size_t rank) {
  if (rank > maxima_.size()) return kNoLogit;
  selected_ = maxima_;
  const auto at = selected_.begin() + static_cast<ptrdiff_t>(rank - 1);
  std::nth_element(selected_.begin(), at, selected_.end(), std::greater<float>());
  return *at;
}

// Makes the tokens with a logit of at least `bound` the candidates.
void Candidates::collect(float bound) {
  logits_.clear();
  ids_.clear();
  for (size_t c = 0; c < row_.chunks(); ++c) {
    const float* maxima = maxima_.data() + c * LogitRow::kLanes;
    size_t lanes[LogitRow::kLanes], lane_count = 0;
    for (size_t j = 0; j < LogitRow::kLanes; ++j) {
      if (maxima[j] >= bound && maxima[j] > kNoLogit) lanes[lane_count++] = j;
    }
    if (lane_count == 0) continue;
    const size_t begin = c * LogitRow::kChunk;
    const size_t end = std::min(begin + LogitRow::kChunk, row_.count);
    // One place for each token of the chunk, then as many less as are not needed: no branch that a
    // CPU could guess wrong.
    const size_t before = ids_.size();
    logits_.resize(before + LogitRow::kChunk);
    ids_.resize(before + LogitRow::kChunk);
    float* logit_out = logits_.data() + before;
    int32_t* id_out = ids_.data() + before;
    size_t kept = 0;
    for (size_t first = begin; first < end; first += LogitRow::kLanes) {
      for (size_t j = 0; j < lane_count && first + lanes[j] < end; ++j) {
        const size_t id = first + lanes[j];
        const float logit = row_.values[id];
        logit_out[kept] = logit;
        id_out[kept] = static_cast<int32_t>(id);
        const bool keeps = (logit >= bound) & (logit > kNoLogit) & row_.allows(id);
        kept += keeps ? 1 : 0;
      }
    }
    logits_.resize(before + kept);
    ids_.resize(before + kept);
  }
}

// Weighs the candidates; returns the sum.
uint64_t Candidates::weigh(const Weighing& weighing) {
  constexpr size_t kChunk = LogitRow::kChunk;
  const size_t padded = (ids_.size() + kChunk - 1) / kChunk * kChunk;
  logits_.resize(padded, kNoLogit);
  weights_.resize(padded);
  for (size_t i = 0; i < padded; i += kChunk) {
    weigh_one_chunk(logits_.data() + i, weighing, weights_.data() + i);
  }
  logits_.resize(ids_.size());
  weights_.resize(ids_.size());
  uint64_t total = 0;
  for (const uint64_t weight : weights_) total += weight;
  return total;
}

// The sum of the row's weights; leaves those of its chunks in sums_.
uint64_t Candidates::weigh_row(const Weighing& weighing) {
  float buffer[LogitRow::kChunk];
  uint64_t weights[LogitRow::kChunk];
  sums_.resize(row_.chunks());
  uint64_t total = 0;
  for (size_t c = 0; c < row_.chunks(); ++c) {
    uint64_t sum = 0;
    if (const float* logits = row_.chunk(c, buffer)) {
      weigh_one_chunk(logits, weighing, weights);
      for (const uint64_t weight : weights) sum += weight;
    }
    sums_[c] = sum;
    total += sum;
  }
  return total;
}

int32_t Candidates::draw_from_row(const Weighing& weighing, double share) {
  uint64_t drawn = drawn_of(weigh_row(weighing), share);
  const size_t chunk = find_drawn(sums_.data(), &drawn);
  float buffer[LogitRow::kChunk];
  uint64_t weights[LogitRow::kChunk];
  weigh_one_chunk(row_.chunk(chunk, buffer), weighing, weights);
  return static_cast<int32_t>(chunk * LogitRow::kChunk + find_drawn(weights, &drawn));
}

int32_t Candidates::draw(const Weighing& weighing, double share) {
  uint64_t drawn = drawn_of(weigh(weighing), share);
  return ids_[find_drawn(weights_.data(), &drawn)];
}

// The candidates to be put in order; they are weighed.
void Candidates::rank_all() {
  ranked_.resize(ids_.size());
  for (size_t i = 0; i < ids_.size(); ++i) ranked_[i] = {logits_[i], ids_[i], weights_[i]};
}

// Of many candidates, only a range of logits in which the first few that weigh *wanted together
// end; takes the weight above that range from *wanted.
void Candidates::rank_last_range(uint64_t* wanted) {
  constexpr size_t kMany = 4096, kRanges = 1024;
  if (ids_.size() < kMany) return rank_all();
  float least = 0, greatest = kNoLogit;  // of those that have a weight
  for (size_t i = 0; i < ids_.size(); ++i) {
    if (weights_[i] == 0) continue;
    least = greatest == kNoLogit ? logits_[i] : std::min(least, logits_[i]);
    greatest = std::max(greatest, logits_[i]);
  }
  const float steps = (kRanges - 1) / (greatest - least);
  if (!std::isfinite(steps)) return rank_all();  // all are about equal
  auto range_of = [&](float logit) {
    const float down = (greatest - logit) * steps;  // never less for a lower logit
    return down < kRanges - 1 ? static_cast<size_t>(down) : kRanges - 1;
  };
  uint64_t sums[kRanges] = {};
  for (size_t i = 0; i < ids_.size(); ++i) sums[range_of(logits_[i])] += weights_[i];
  size_t last = 0;
  while (sums[last] < *wanted) *wanted -= sums[last++];
  ranked_.clear();
  for (size_t i = 0; i < ids_.size(); ++i) {
    if (range_of(logits_[i]) == last) ranked_.push_back({logits_[i], ids_[i], weights_[i]});
  }
}

// Drops what ranks behind the first few candidates that weigh `wanted` together, of which there
// are enough. Halves the range in which the last one of those lies until it is worth sorting.
void Candidates::keep_weight(uint64_t wanted) {
  constexpr ptrdiff_t kSorted = 32;
  rank_last_range(&wanted);
  auto begin = ranked_.begin(), end = ranked_.end();
  while (end - begin > kSorted) {
    const auto middle = begin + (end - begin) / 2;
    std::nth_element(begin, middle, end, ranks_higher);
    uint64_t upper = 0;
    for (auto it = begin; it != middle; ++it) upper += it->weight;
    if (upper >= wanted) {
      end = middle;
    } else {
      wanted -= upper;
      begin = middle;
    }
  }
  sort_few(begin, end);
  while (begin->weight < wanted) wanted -= (begin++)->weight;
  keep_down_to(*begin);
}

void Candidates::keep_down_to(const Token& last) {
  size_t kept = 0;
  for (size_t i = 0; i < ids_.size(); ++i) {
    const float logit = logits_[i];
    const int32_t id = ids_[i];
    logits_[kept] = logit;
    ids_[kept] = id;
    const bool keeps = (logit > last.logit) | ((logit == last.logit) & (id <= last.id));
    kept += keeps ? 1 : 0;
  }
  logits_.resize(kept);
  ids_.resize(kept);
}

void Candidates::keep_top_k(size_t count) {
  collect(bound_of_rank(count));
  if (count >= ids_.size()) return;
  weights_.assign(ids_.size(), 0);
  rank_all();
  const auto last = ranked_.begin() + static_cast<ptrdiff_t>(count - 1);
  std::nth_element(ranked_.begin(), last, ranked_.end(), ranks_higher);
  keep_down_to(*last);
}

void Candidates::keep_top_p(const Weighing& weighing, float top_p) {
  keep_weight(part_of(weigh(weighing), top_p));
}

// They are found among the first hundred if those hold enough, else the first thousand, else all.
void Candidates::keep_top_p_of_row(const Weighing& weighing, float top_p) {
  const uint64_t wanted = part_of(weigh_row(weighing), top_p);
  for (const size_t rank : {size_t{128}, size_t{1024}, row_.count}) {
    collect(rank < row_.count ? bound_of_rank(rank) : kNoLogit);
    if (weigh(weighing) >= wanted) break;
  }
  keep_weight(wanted);
}

}  // namespace mlcb
