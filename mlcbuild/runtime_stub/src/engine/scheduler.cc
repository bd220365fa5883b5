#include "engine/scheduler.h"

#include <algorithm>

#include "core/error.h"

namespace mlcb {
namespace {

// The last token of a text is never fed back, but a prompt is always cached whole.
int64_t most_cached_tokens(int64_t token_limit, int64_t prompt_tokens) {
  return std::max(token_limit - 1, prompt_tokens);
}

}  // namespace

void Scheduler::check_fits(int64_t token_limit, int64_t prompt_tokens, const KvCache& cache) const {
  const int64_t tokens = most_cached_tokens(token_limit, prompt_tokens);
  if (cache.pages_for(tokens) <= limits_.pages) return;
  throw Error(MLCB_ERROR_MEMORY, "the request may grow to " + std::to_string(tokens) +
                                     " tokens, the KV cache holds " +
                                     std::to_string(limits_.pages * cache.page_size()) +
                                     "\nhint: raise kv_tokens or lower max_tokens");
}

void Scheduler::add(std::unique_ptr<Request> request) { waiting_.push_back(std::move(request)); }

void Scheduler::admit(KvCache* cache) {
  while (!waiting_.empty() && static_cast<int64_t>(running_.size()) < limits_.sequences) {
    Request& request = *waiting_.front();
    const int64_t pages = cache->pages_for(
        most_cached_tokens(request.token_limit, static_cast<int64_t>(request.tokens.size())));
    if (reserved_pages_ + pages > limits_.pages) return;
    request.reserved_pages = pages;
    request.sequence = cache->add();
    reserved_pages_ += pages;
    running_.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
  }
}

std::vector<ScheduledSlice> Scheduler::next(KvCache* cache) {
  admit(cache);
  std::vector<ScheduledSlice> slices;
  int64_t rows_left = limits_.rows;
  for (const auto& request : running_) {
    if (request->pending() != 1 || rows_left == 0) continue;
    slices.push_back({request.get(), 1, true});
    --rows_left;
  }
  for (const auto& request : running_) {
    if (request->pending() == 1 || rows_left == 0) continue;
    const int64_t rows = std::min(request->pending(), rows_left);
    slices.push_back({request.get(), rows, rows == request->pending()});
    rows_left -= rows;
  }
  return slices;
}

std::unique_ptr<Request> Scheduler::remove(uint64_t id, KvCache* cache) {
  auto has_id = [id](const std::unique_ptr<Request>& request) { return request->id == id; };
  auto running = std::find_if(running_.begin(), running_.end(), has_id);
  if (running != running_.end()) {
    std::unique_ptr<Request> request = std::move(*running);
    running_.erase(running);
    cache->remove(request->sequence);
    reserved_pages_ -= request->reserved_pages;
    return request;
  }
  auto waiting = std::find_if(waiting_.begin(), waiting_.end(), has_id);
  if (waiting == waiting_.end()) return nullptr;
  std::unique_ptr<Request> request = std::move(*waiting);
  waiting_.erase(waiting);
  return request;
}

std::vector<uint64_t> Scheduler::ids() const {
  std::vector<uint64_t> ids;
  for (const auto& request : running_) ids.push_back(request->id);
  for (const auto& request : waiting_) ids.push_back(request->id);
  return ids;
}

}  // namespace mlcb
