#include "engine/scheduler.h"

#include <algorithm>

#include "core/error.h"

namespace mlcb {

Scheduler::Scheduler(const SchedulerLimits& limits, KvCache* cache, PrefixCache* prefixes,
                     std::function<void(const Choice&)> forget)
    : limits_(limits), cache_(cache), prefixes_(prefixes), forget_(std::move(forget)) {}

void Scheduler::check_fits(int64_t token_limit, int64_t prompt_tokens) const {
  // The last token of a text is never fed back, but a prompt is always cached whole.
  const int64_t tokens = std::max(token_limit - 1, prompt_tokens);
  if (cache_->most_pages_for(tokens, limits_.rows) <= limits_.pages) return;
  throw Error(MLCB_ERROR_TOO_LONG, "the request may grow to " + std::to_string(tokens) +
                                       " tokens, the KV cache holds " +
                                       std::to_string(limits_.pages * cache_->page_size()) +
                                       "\nhint: lower max_tokens or raise kv_tokens");
}

void Scheduler::insert_sorted(List* list, std::unique_ptr<Choice> choice) {
  auto place = std::find_if(list->begin(), list->end(),
                            [&](const auto& other) { return choice->before(*other); });
  list->insert(place, std::move(choice));
}

void Scheduler::add(std::unique_ptr<Choice> choice) { insert_sorted(&waiting_, std::move(choice)); }

Choice* Scheduler::add_fork(std::unique_ptr<Choice> choice, SequenceId parent) {
  Choice* added = choice.get();
  if (static_cast<int64_t>(running_.size()) < limits_.sequences) {
    choice->sequence = cache_->fork(parent);
    choice->cached = cache_->length(parent);
    insert_sorted(&running_, std::move(choice));
  } else {
    insert_sorted(&waiting_, std::move(choice));
  }
  return added;
}

int64_t Scheduler::promised_pages() const {
  int64_t promised = 0;
  for (const auto& choice : running_) {
    const int64_t held = static_cast<int64_t>(cache_->pages(choice->sequence).size());
    const int64_t needed = cache_->most_pages_for(choice->size(), limits_.rows);
    promised += std::max<int64_t>(0, needed - held);
  }
  return promised;
}

void Scheduler::admit() {
  while (!waiting_.empty() && static_cast<int64_t>(running_.size()) < limits_.sequences) {
    Choice& choice = *waiting_.front();
    // At least one token must be computed, for its logits.
    const std::vector<int32_t> known = prefixes_->match(choice.tokens.data(), choice.size() - 1);
    int64_t idle_matched = 0;
    for (int32_t page : known) idle_matched += cache_->held_by_sequence(page) ? 0 : 1;
    const int64_t needed =
        cache_->most_pages_for(choice.size(), limits_.rows) - static_cast<int64_t>(known.size());
    const int64_t spare = running_.empty() ? 0 : static_cast<int64_t>(running_.size());
    const int64_t available =
        cache_->free_pages() + cache_->idle_pages() - idle_matched - promised_pages();
    if (needed + spare > available && !running_.empty()) return;
    choice.sequence = cache_->add(known);
    choice.cached = cache_->length(choice.sequence);
    choice.tree_pages = static_cast<int64_t>(known.size());
    choice.tree_node = known.empty() ? PrefixCache::kRoot : known.back();
    if (choice.generated() == 0 && !choice.request->has_started()) {
      choice.request->cached_tokens = choice.cached;
    }
    insert_sorted(&running_, std::move(waiting_.front()));
    waiting_.erase(waiting_.begin());
  }
}

bool Scheduler::make_free(int64_t pages) {
  if (cache_->free_pages() < pages) prefixes_->evict(pages - cache_->free_pages());
  return cache_->free_pages() >= pages;
}

int64_t Scheduler::pages_taken(const std::vector<ScheduledSlice>& slices) const {
  int64_t taken = 0;
  for (const ScheduledSlice& slice : slices) {
    taken += cache_->pages_to_take({slice.choice->sequence, slice.rows});
  }
  return taken;
}

void Scheduler::preempt(Choice* choice, std::vector<ScheduledSlice>* slices) {
  ++preemptions_;
  auto is_it = [choice](const ScheduledSlice& slice) { return slice.choice == choice; };
  slices->erase(std::remove_if(slices->begin(), slices->end(), is_it), slices->end());
  insert_sorted(&waiting_, remove(choice));
}

// Puts the choice's next row into the step, with as many of its guesses as there are pages for.
// False if the choice itself was preempted.
bool Scheduler::add_decode(Choice* choice, int64_t drafts, std::vector<ScheduledSlice>* slices) {
  const int64_t taken = pages_taken(*slices);
  if (drafts > 0 && !make_free(taken + cache_->pages_to_take({choice->sequence, 1 + drafts}))) {
    drafts = 0;
  }
  for (;;) {
    const int64_t needed = cache_->pages_to_take({choice->sequence, 1 + drafts});
    if (make_free(pages_taken(*slices) + needed)) break;
    Choice* last = running_.back().get();
    preempt(last, slices);
    if (last == choice) return false;
  }
  slices->push_back({choice, 1 + drafts, drafts, true});
  return true;
}

void Scheduler::add_prefills(int64_t rows_left, std::vector<ScheduledSlice>* slices) {
  std::vector<Choice*> prompts;
  for (const auto& choice : running_) {
    if (!choice->decodes()) prompts.push_back(choice.get());
  }
  // Shortest first: what a short prompt does not need goes to the longer ones.
  std::vector<Choice*> by_length = prompts;
  std::stable_sort(by_length.begin(), by_length.end(),
                   [](const Choice* a, const Choice* b) { return a->pending() < b->pending(); });
  int64_t sharing = static_cast<int64_t>(by_length.size());
  for (Choice* choice : by_length) {
    const int64_t share = (rows_left + sharing - 1) / sharing;
    --sharing;
    int64_t rows = std::min(choice->pending(), share);
    const int64_t taken = pages_taken(*slices);
    // With too few pages for all of them, as many rows as there are pages for.
    while (rows > 0 && !make_free(taken + cache_->pages_to_take({choice->sequence, rows}))) {
      rows = std::max<int64_t>(0, rows - cache_->page_size());
    }
    if (rows == 0) continue;
    slices->push_back({choice, rows, 0, rows == choice->pending()});
    rows_left -= rows;
    if (rows_left == 0) return;
  }
}

std::vector<ScheduledSlice> Scheduler::next() {
  std::vector<ScheduledSlice> slices;
  std::vector<Choice*> decoding;
  for (const auto& choice : running_) {
    if (choice->decodes()) decoding.push_back(choice.get());
  }
  int64_t spare = spare_rows();
  int64_t rows_left = limits_.rows;
  for (Choice* choice : decoding) {
    // Preempted by one before it.
    if (choice->sequence == 0) continue;
    const int64_t useful = choice->request->token_limit - choice->size() - 1;
    int64_t drafts =
        std::max<int64_t>(0, std::min({static_cast<int64_t>(choice->draft.size()), spare, useful}));
    // What branches off starts from the prompt alone.
    if (choice->forks > 0) drafts = 0;
    if (!add_decode(choice, drafts, &slices)) continue;
    spare -= slices.back().drafts;
  }
  for (const ScheduledSlice& slice : slices) rows_left -= slice.rows;
  add_prefills(rows_left, &slices);
  // Prompts alone hold all pages and none can go on: the last to come makes room.
  while (slices.empty() && running_.size() > 1) {
    preempt(running_.back().get(), &slices);
    add_prefills(limits_.rows, &slices);
  }
  return slices;
}

std::unique_ptr<Choice> Scheduler::remove(Choice* choice) {
  for (List* list : {&running_, &waiting_}) {
    auto found = std::find_if(list->begin(), list->end(),
                              [choice](const auto& other) { return other.get() == choice; });
    if (found == list->end()) continue;
    std::unique_ptr<Choice> removed = std::move(*found);
    list->erase(found);
    if (removed->sequence != 0) {
      cache_->remove(removed->sequence);
      forget_(*removed);
    }
    removed->sequence = 0;
    removed->cached = 0;
    removed->tree_node = PrefixCache::kRoot;
    removed->tree_pages = 0;
    removed->draft.clear();
    return removed;
  }
  return nullptr;
}

std::vector<Choice*> Scheduler::all() const {
  std::vector<Choice*> found;
  for (const List* list : {&running_, &waiting_}) {
    for (const auto& choice : *list) found.push_back(choice.get());
  }
  return found;
}

std::vector<Choice*> Scheduler::choices_of(uint64_t request_id) const {
  std::vector<Choice*> found;
  for (Choice* choice : all()) {
    if (choice->request->id == request_id) found.push_back(choice);
  }
  return found;
}

}  // namespace mlcb
