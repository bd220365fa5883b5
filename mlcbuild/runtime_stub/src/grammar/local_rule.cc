#include "grammar/local_rule.h"

#include <algorithm>

#include "grammar/vector_ids.h"

namespace mlcb {

// A counted rule's finish is its start, one further.
void LocalRule::close_loop() {
  for (LocalState& state : states) {
    for (ByteTransition& edge : state.bytes) {
      if (states[edge.to].accepts) edge.to = 0;
    }
    for (CallTransition& call : state.calls) {
      if (states[call.to].accepts) call.to = 0;
    }
  }
  for (LocalState& state : states) state.accepts = false;
  states[0].accepts = true;
}

void LocalRule::add_tail(uint32_t byte_class) {
  tail_state = static_cast<uint32_t>(states.size());
  states[0].accepts = false;
  auto& bytes = states[0].bytes;
  const auto behind = std::find_if(bytes.begin(), bytes.end(), [&](const ByteTransition& edge) {
    return edge.first > byte_class;
  });
  bytes.insert(behind, {byte_class, byte_class, tail_state});
  states.emplace_back();
  states.back().accepts = true;
}

// Drops transitions to states from which the end cannot be reached.
void LocalRule::trim() {
  const size_t count = states.size();
  std::vector<std::vector<uint32_t>> sources(count);
  for (uint32_t i = 0; i < count; ++i) {
    for (const ByteTransition& edge : states[i].bytes) sources[edge.to].push_back(i);
    for (const CallTransition& call : states[i].calls) sources[call.to].push_back(i);
  }
  std::vector<char> alive(count, 0);
  std::vector<uint32_t> work;
  for (uint32_t i = 0; i < count; ++i) {
    if (states[i].accepts) work.push_back(i);
  }
  while (!work.empty()) {
    const uint32_t state = work.back();
    work.pop_back();
    if (alive[state]) continue;
    alive[state] = 1;
    work.insert(work.end(), sources[state].begin(), sources[state].end());
  }
  for (LocalState& state : states) {
    auto& bytes = state.bytes;
    bytes.erase(std::remove_if(bytes.begin(), bytes.end(),
                               [&](const ByteTransition& edge) { return !alive[edge.to]; }),
                bytes.end());
    auto& calls = state.calls;
    calls.erase(std::remove_if(calls.begin(), calls.end(),
                               [&](const CallTransition& call) { return !alive[call.to]; }),
                calls.end());
  }
}

// Joins states with the same transitions, from the ends of the rule towards its start. A
// transition to the state itself counts as equal to the other's to itself.
void LocalRule::merge_equal() {
  std::vector<uint32_t> order, same(states.size());
  for (uint32_t i = 0; i < same.size(); ++i) same[i] = i;
  post_order(&order);
  for (int round = 0; round < 3; ++round) {
    VectorIds known;
    std::vector<uint32_t> kept;  // states by id
    bool changed = false;
    for (const uint32_t state : order) {
      if (same[state] != state) continue;
      LocalState& local = states[state];
      std::vector<uint32_t> key = {local.accepts};
      auto target = [&](uint32_t* to) {
        *to = same[*to];
        return *to == state ? RuleSet::kNone : *to;
      };
      for (ByteTransition& edge : local.bytes) {
        const uint32_t to = target(&edge.to);
        key.insert(key.end(), {edge.first, edge.last, to});
      }
      key.push_back(RuleSet::kNone);
      for (CallTransition& call : local.calls) {
        const uint32_t to = target(&call.to);
        key.insert(key.end(), {call.rule, to});
      }
      bool added = false;
      const uint32_t id = known.add(key, &added);
      if (added) kept.push_back(state);
      if (added || state == 0 || kept[id] == 0) continue;  // the start stays what it is
      same[state] = kept[id];
      changed = true;
    }
    if (!changed) break;
  }
  for (LocalState& state : states) {
    for (ByteTransition& edge : state.bytes) edge.to = same[edge.to];
    for (CallTransition& call : state.calls) call.to = same[call.to];
  }
}

void LocalRule::post_order(std::vector<uint32_t>* order) const {
  std::vector<char> seen(states.size(), 0);
  std::vector<std::pair<uint32_t, size_t>> stack = {{0, 0}};
  seen[0] = 1;
  while (!stack.empty()) {
    const uint32_t state = stack.back().first;
    const LocalState& local = states[state];
    const size_t next = stack.back().second++;
    uint32_t to = RuleSet::kNone;
    if (next < local.bytes.size()) {
      to = local.bytes[next].to;
    } else if (next - local.bytes.size() < local.calls.size()) {
      to = local.calls[next - local.bytes.size()].to;
    } else {
      order->push_back(state);
      stack.pop_back();
      continue;
    }
    if (seen[to]) continue;
    seen[to] = 1;
    stack.emplace_back(to, 0);
  }
}

}  // namespace mlcb
