#include "grammar/grammar.h"

#include "core/utf8.h"
#include "grammar/automaton.h"
#include "grammar/compile.h"
#include "grammar/grammar_error.h"
#include "grammar/machine.h"

namespace mlcb {
namespace {

constexpr size_t kMaxCachedGrammars = 64;
constexpr size_t kMaxMachineBytes = 8 << 20;
constexpr size_t kMaxForcedBytes = 4096;

uint32_t add_grammar(RuleSet* rules, JsonRules* json, mlcb_grammar_kind kind,
                     std::string_view text) {
  switch (kind) {
    case MLCB_GRAMMAR_JSON:
      return json->object_or_array();
    case MLCB_GRAMMAR_JSON_SCHEMA:
      return add_json_schema(rules, json, parse_grammar_json(text, "JSON schema"), "");
    case MLCB_GRAMMAR_REGEX:
      return add_regex(rules, text, "regular expression");
    case MLCB_GRAMMAR_EBNF:
      return add_ebnf(rules, text, "grammar");
    case MLCB_GRAMMAR_STRUCTURE:
      return add_structure(rules, json, parse_grammar_json(text, "structure"));
    default:
      throw Error(MLCB_ERROR_ARGUMENT, "no such kind of grammar: " + std::to_string(kind));
  }
}

}  // namespace

struct Grammar::Compiled {
  std::shared_ptr<const GrammarVocabulary> vocabulary;
  Automaton automaton;
  std::mutex mutex;                  // for what follows, and for every machine of this grammar
  std::shared_ptr<Machine> machine;  // nullptr: a new one is made when it is needed
  NodeMasks masks;
};

// Locks the grammar while a matcher uses its machine. One that has grown too large is left for a
// new one, and freed with its last matcher.
class Grammar::Use {
 public:
  explicit Use(Compiled* compiled) : compiled_(*compiled), lock_(compiled_.mutex) {
    if (!compiled_.machine) {
      compiled_.machine = std::make_shared<Machine>(compiled_.automaton, *compiled_.vocabulary);
    }
    compiled_.machine->start_work();
  }
  ~Use() {
    if (compiled_.machine->bytes() > kMaxMachineBytes) compiled_.machine.reset();
  }
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;

  const std::shared_ptr<Machine>& machine() const { return compiled_.machine; }

 private:
  Compiled& compiled_;
  std::lock_guard<std::mutex> lock_;
};

Grammar::Grammar(std::unique_ptr<Compiled> compiled) : compiled_(std::move(compiled)) {}
Grammar::~Grammar() = default;

std::shared_ptr<const Grammar> Grammar::compile(
    mlcb_grammar_kind kind, std::string_view text,
    std::shared_ptr<const GrammarVocabulary> vocabulary) {
  RuleSet rules;
  JsonRules json(&rules);
  const uint32_t root = add_grammar(&rules, &json, kind, text);
  auto compiled = std::make_unique<Compiled>();
  compiled->vocabulary = std::move(vocabulary);
  compiled->automaton = build_automaton(&rules, root);
  return std::shared_ptr<const Grammar>(new Grammar(std::move(compiled)));
}

GrammarCache::GrammarCache(std::shared_ptr<const GrammarVocabulary> vocabulary)
    : vocabulary_(std::move(vocabulary)) {}

std::shared_ptr<const Grammar> GrammarCache::find(mlcb_grammar_kind kind, std::string_view text) {
  for (auto entry = entries_.begin(); entry != entries_.end(); ++entry) {
    if (entry->kind != kind || entry->text != text) continue;
    entries_.splice(entries_.begin(), entries_, entry);
    return entry->grammar;
  }
  return nullptr;
}

std::shared_ptr<const Grammar> GrammarCache::get(mlcb_grammar_kind kind, std::string_view text) {
  if (kind == MLCB_GRAMMAR_JSON) text = {};  // it has none
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (auto known = find(kind, text)) return known;
  }
  std::shared_ptr<const Grammar> grammar = Grammar::compile(kind, text, vocabulary_);
  std::lock_guard<std::mutex> lock(mutex_);
  if (auto known = find(kind, text)) return known;  // another thread was faster
  entries_.push_front({kind, std::string(text), grammar});
  if (entries_.size() > kMaxCachedGrammars) entries_.pop_back();
  return grammar;
}

GrammarMatcher::GrammarMatcher(std::shared_ptr<const Grammar> grammar)
    : grammar_(std::move(grammar)) {
  const Grammar::Use use(grammar_->compiled_.get());
  machine_ = use.machine();
  enter(machine_->start());
}

void GrammarMatcher::move_to(const std::shared_ptr<Machine>& machine) const {
  if (machine_ == machine) return;
  state_ = machine->import(*machine_, state_);
  machine_ = machine;
}

void GrammarMatcher::enter(uint32_t state) {
  state_ = state;
  can_end_ = machine_->can_end(state);
  must_end_ = can_end_ && !machine_->can_go_on(state);
  has_mask_ = false;
}

const uint32_t* GrammarMatcher::allowed() {
  if (has_mask_) return mask_.data();
  const GrammarVocabulary& vocabulary = *grammar_->compiled_->vocabulary;
  mask_.assign(vocabulary.mask_words(), 0);
  if (!stopped_) {
    const Grammar::Use use(grammar_->compiled_.get());
    move_to(use.machine());
    machine_->add_allowed(state_, &grammar_->compiled_->masks, mask_.data());
    if (can_end_) {
      for (const int32_t id : vocabulary.stop_ids()) mask_[id >> 5] |= 1u << (id & 31);
    }
  }
  has_mask_ = true;
  return mask_.data();
}

bool GrammarMatcher::accept(int32_t token) {
  const GrammarVocabulary& vocabulary = *grammar_->compiled_->vocabulary;
  if (!vocabulary.is_stop(token)) {
    const std::string_view bytes = vocabulary.token_bytes(token);
    return !bytes.empty() && accept_bytes(bytes);
  }
  if (stopped_ || !can_end_) return false;
  stopped_ = true;
  must_end_ = true;
  has_mask_ = false;
  return true;
}

bool GrammarMatcher::accept_bytes(std::string_view bytes) {
  if (bytes.empty()) return true;
  if (stopped_) return false;
  const Grammar::Use use(grammar_->compiled_.get());
  move_to(use.machine());
  Machine::StateId state = state_;
  for (const char byte : bytes) {
    state = machine_->step(state, static_cast<uint8_t>(byte));
    if (state == Machine::kDead) return false;
  }
  enter(state);
  return true;
}

bool GrammarMatcher::can_end() const { return can_end_; }
bool GrammarMatcher::must_end() const { return must_end_; }

std::string GrammarMatcher::forced_bytes() const {
  std::string bytes;
  if (stopped_) return bytes;
  const Grammar::Use use(grammar_->compiled_.get());
  move_to(use.machine());
  Machine::StateId state = state_;
  while (bytes.size() < kMaxForcedBytes) {
    const int byte = machine_->forced_byte(state);
    if (byte < 0) break;
    const Machine::StateId next = machine_->step(state, static_cast<uint8_t>(byte));
    if (next == Machine::kDead) break;
    bytes.push_back(static_cast<char>(byte));
    state = next;
  }
  // Only whole characters: the rest of one that began earlier, then full ones.
  size_t end = 0;
  while (end < bytes.size() && (bytes[end] & 0xC0) == 0x80) ++end;
  while (end < bytes.size()) {
    const Utf8Char c = utf8_decode(bytes.data() + end, bytes.data() + bytes.size());
    if (c.size == 0) break;
    end += c.size;
  }
  bytes.resize(end);
  return bytes;
}

}  // namespace mlcb
