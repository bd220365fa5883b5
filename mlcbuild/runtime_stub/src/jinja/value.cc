#include "jinja/value.h"

#include <utility>

#include "core/error.h"
#include "jinja/python.h"

namespace mlcb::jinja {
namespace {

constexpr size_t kOverhead = 16;  // of one allocation

}  // namespace

void fail(const std::string& message) { throw Error(MLCB_ERROR_ARGUMENT, message); }

void Object::discard() { heap_->discard(this); }

const Value* DictObject::find(std::string_view key) const {
  for (const auto& [name, value] : items) {
    if (name.is_string() && name.text() == key) return &value;
  }
  return nullptr;
}

const Value* DictObject::find(const Value& key) const {
  if (key.is_string()) return find(std::string_view(key.text()));
  for (const auto& [name, value] : items) {
    if (equal(name, key)) return &value;
  }
  return nullptr;
}

template <typename Kept, typename... Arguments>
Kept* Heap::make(size_t bytes, Arguments&&... arguments) {
  const size_t charged = bytes + sizeof(Kept) + kOverhead;
  expect(charged);
  Kept* object = new Kept(this, std::forward<Arguments>(arguments)...);
  bytes_left_ -= charged;
  Object* base = object;
  base->charged_ = charged;
  base->next_ = objects_;
  if (objects_ != nullptr) objects_->previous_ = base;
  objects_ = base;
  return object;
}

void Heap::expect(size_t bytes) const {
  if (bytes > bytes_left_) fail("the template needs more memory than a conversation may take");
}

void Heap::out_of_steps() { fail("the template takes more steps than a conversation may take"); }

// A loop, not a recursion: values may be nested as deeply as memory allows.
void Heap::discard(Object* object) {
  dead_.push_back(object);
  if (clearing_) return;
  clearing_ = true;
  while (!dead_.empty()) {
    Object* next = dead_.back();
    dead_.pop_back();
    (next->previous_ != nullptr ? next->previous_->next_ : objects_) = next->next_;
    if (next->next_ != nullptr) next->next_->previous_ = next->previous_;
    bytes_left_ += next->charged_;
    delete next;
  }
  clearing_ = false;
}

// What still lives is held by a cycle: a macro in a variable of its own scope, say.
Heap::~Heap() {
  std::vector<Object*> left;
  for (Object* object = objects_; object != nullptr; object = object->next_) {
    object->retain();
    left.push_back(object);
  }
  for (Object* object : left) object->drop_values();
  for (Object* object : left) object->release();
}

Value Heap::string(std::string text) {
  const size_t bytes = text.capacity();
  return Value::object(Kind::kString, make<StringObject>(bytes, std::move(text)));
}

Value Heap::undefined(std::string message) {
  const size_t bytes = message.capacity();
  return Value::object(Kind::kUndefined, make<StringObject>(bytes, std::move(message)));
}

Value Heap::list(std::vector<Value> items, Flavor flavor) {
  SequenceObject* object = make<SequenceObject>(items.capacity() * sizeof(items[0]), flavor);
  object->items = std::move(items);
  return Value::object(Kind::kSequence, object);
}

Value Heap::dict(std::vector<std::pair<Value, Value>> items) {
  DictObject* object = make<DictObject>(items.capacity() * sizeof(items[0]));
  object->items = std::move(items);
  return Value::object(Kind::kDict, object);
}

Value Heap::name_space() {
  return Value::object(Kind::kNamespace, make<NamespaceObject>(size_t{256}));
}

FunctionObject* Heap::function(FunctionKind kind) { return make<FunctionObject>(size_t{0}, kind); }

LoopObject* Heap::loop() { return make<LoopObject>(size_t{0}); }

ScopeObject* Heap::scope(ScopeObject* parent) {
  ScopeObject* object = make<ScopeObject>(size_t{64});
  object->parent = parent;
  if (parent != nullptr) parent->retain();
  return object;
}

}  // namespace mlcb::jinja
