// The values that a template computes with: Python's, as far as Jinja shows them.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace mlcb::jinja {

class Heap;
class Value;

enum class Kind : uint8_t {
  kMissing,    // no value at all: an argument that was not given
  kUndefined,  // Jinja's undefined
  kNone,
  kBool,
  kInt,
  kBigInt,  // an integer literal beyond 64 bits: can be printed, not computed with
  kFloat,
  kString,
  kSequence,
  kDict,
  kNamespace,
  kFunction,
  kLoop,
};

enum class Flavor : uint8_t { kList, kTuple, kKeys, kValues, kItems, kRange, kIterator };

// What a Value points to. Counted by the values; those of a template itself are immortal, so that
// threads may share them.
class Object {
 public:
  explicit Object(Heap* heap) : heap_(heap) {}
  Object(const Object&) = delete;
  Object& operator=(const Object&) = delete;
  virtual ~Object() = default;
  virtual void drop_values() {}  // forgets what it points to

  void retain() {
    if (heap_ != nullptr) ++references_;
  }
  void release() {
    if (heap_ != nullptr && --references_ == 0) discard();
  }
  Heap* heap() const { return heap_; }

 private:
  friend class Heap;
  void discard();

  Heap* heap_;  // nullptr: immortal
  uint32_t references_ = 0;
  size_t charged_ = 0;  // bytes
  Object* previous_ = nullptr;
  Object* next_ = nullptr;  // of the heap's list
};

struct StringObject;
struct SequenceObject;
struct DictObject;
struct NamespaceObject;
struct FunctionObject;
struct LoopObject;

class Value {
 public:
  Value() = default;
  Value(const Value& other) : kind_(other.kind_), data_(other.data_) { retain(); }
  Value(Value&& other) noexcept : kind_(other.kind_), data_(other.data_) {
    other.kind_ = Kind::kMissing;
  }
  Value& operator=(const Value& other) {
    Value copy(other);
    swap(copy);
    return *this;
  }
  Value& operator=(Value&& other) noexcept {
    swap(other);
    return *this;
  }
  ~Value() {
    if (is_object()) data_.object->release();
  }
  void swap(Value& other) noexcept {
    std::swap(kind_, other.kind_);
    std::swap(data_, other.data_);
  }

  static Value none() { return Value(Kind::kNone); }
  static Value boolean(bool value) {
    Value result(Kind::kBool);
    result.data_.integer = value ? 1 : 0;
    return result;
  }
  static Value integer(int64_t value) {
    Value result(Kind::kInt);
    result.data_.integer = value;
    return result;
  }
  static Value real(double value) {
    Value result(Kind::kFloat);
    result.data_.real = value;
    return result;
  }
  static Value object(Kind kind, Object* object) {
    Value result(kind);
    result.data_.object = object;
    result.retain();
    return result;
  }

  Kind kind() const { return kind_; }
  bool is(Kind kind) const { return kind_ == kind; }
  bool given() const { return kind_ != Kind::kMissing; }
  bool is_string() const { return kind_ == Kind::kString; }
  // Python's int with its subclass bool.
  bool is_integer() const { return kind_ == Kind::kInt || kind_ == Kind::kBool; }
  bool is_number() const { return is_integer() || kind_ == Kind::kFloat; }
  bool is_sequence(Flavor flavor) const;

  int64_t as_int() const { return data_.integer; }  // of kInt or kBool
  bool as_bool() const { return data_.integer != 0; }
  double as_real() const {  // of a number
    return kind_ == Kind::kFloat ? data_.real : static_cast<double>(data_.integer);
  }
  const std::string& text() const;  // of kString, kBigInt, and the message of kUndefined
  StringObject& string() const;
  SequenceObject& sequence() const;
  DictObject& dict() const;
  NamespaceObject& name_space() const;
  FunctionObject& function() const;
  LoopObject& loop() const;
  const Object* object() const { return is_object() ? data_.object : nullptr; }

 private:
  explicit Value(Kind kind) : kind_(kind) {}
  bool is_object() const {
    return kind_ == Kind::kUndefined || kind_ == Kind::kBigInt || kind_ >= Kind::kString;
  }
  void retain() {
    if (is_object()) data_.object->retain();
  }

  Kind kind_ = Kind::kMissing;
  union Data {
    int64_t integer;
    double real;
    Object* object;
  } data_ = {0};
};

// Text; also what an undefined value has to say, and the digits of a big integer.
struct StringObject : Object {
  StringObject(Heap* heap, std::string value) : Object(heap), text(std::move(value)) {}
  std::string text;
  bool markup = false;  // Jinja's "safe" string
};

struct SequenceObject : Object {
  SequenceObject(Heap* heap, Flavor kind) : Object(heap), flavor(kind) {}
  void drop_values() override { items.clear(); }
  Flavor flavor;
  bool consumed = false;  // an iterator gives its items once
  std::vector<Value> items;
};

struct DictObject : Object {
  explicit DictObject(Heap* heap) : Object(heap) {}
  void drop_values() override { items.clear(); }
  const Value* find(const Value& key) const;
  const Value* find(std::string_view key) const;
  std::vector<std::pair<Value, Value>> items;
};

struct NamespaceObject : Object {
  explicit NamespaceObject(Heap* heap) : Object(heap) {}
  void drop_values() override { items.clear(); }
  std::vector<std::pair<std::string, Value>> items;
};

// The variables of one scope; names are numbered by the parser.
struct ScopeObject : Object {
  explicit ScopeObject(Heap* heap) : Object(heap) {}
  ~ScopeObject() override { drop_values(); }
  void drop_values() override {
    variables.clear();
    if (parent != nullptr) parent->release();
    parent = nullptr;
  }
  ScopeObject* parent = nullptr;
  std::vector<std::pair<int32_t, Value>> variables;
};

struct Statement;
struct Method;

enum class FunctionKind : uint8_t {
  kMacro,
  kMethod,
  kLoopCycle,
  kLoopChanged,
  kRange,
  kDict,
  kNamespace,
  kRaiseException,
  kStrftimeNow,
};

struct FunctionObject : Object {
  FunctionObject(Heap* heap, FunctionKind kind) : Object(heap), function_kind(kind) {}
  ~FunctionObject() override { drop_values(); }
  void drop_values() override {
    self = Value();
    if (closure != nullptr) closure->release();
    closure = nullptr;
  }
  FunctionKind function_kind;
  const Statement* macro = nullptr;
  ScopeObject* closure = nullptr;
  const Method* method = nullptr;
  Value self;  // of a method
};

struct LoopObject : Object {
  explicit LoopObject(Heap* heap) : Object(heap) {}
  ~LoopObject() override { drop_values(); }
  void drop_values() override {
    items = last_changed = Value();
    if (scope != nullptr) scope->release();
    scope = nullptr;
  }
  Value items;  // a sequence
  int64_t index0 = 0;
  int64_t depth0 = 0;
  const Statement* recursive = nullptr;
  ScopeObject* scope = nullptr;  // around the loop, if it is recursive
  Value last_changed;
};

inline StringObject& Value::string() const { return *static_cast<StringObject*>(data_.object); }
inline SequenceObject& Value::sequence() const {
  return *static_cast<SequenceObject*>(data_.object);
}
inline DictObject& Value::dict() const { return *static_cast<DictObject*>(data_.object); }
inline NamespaceObject& Value::name_space() const {
  return *static_cast<NamespaceObject*>(data_.object);
}
inline FunctionObject& Value::function() const {
  return *static_cast<FunctionObject*>(data_.object);
}
inline LoopObject& Value::loop() const { return *static_cast<LoopObject*>(data_.object); }
inline const std::string& Value::text() const { return string().text; }
inline bool Value::is_sequence(Flavor flavor) const {
  return kind_ == Kind::kSequence && sequence().flavor == flavor;
}

// What one render holds and spends. Throws Error when that is more than its limits.
class Heap {
 public:
  Heap(size_t bytes_limit, uint64_t steps_limit)
      : bytes_left_(bytes_limit), steps_left_(steps_limit) {}
  ~Heap();
  Heap(const Heap&) = delete;
  Heap& operator=(const Heap&) = delete;

  Value string(std::string text);
  Value undefined(std::string message);
  Value list(std::vector<Value> items, Flavor flavor = Flavor::kList);
  Value dict(std::vector<std::pair<Value, Value>> items);  // keys are unique and hashable
  Value name_space();
  FunctionObject* function(FunctionKind kind);
  LoopObject* loop();
  ScopeObject* scope(ScopeObject* parent);

  void work(uint64_t steps) {
    if (steps > steps_left_) out_of_steps();
    steps_left_ -= steps;
  }
  // Bytes that will be asked for: throws before they are.
  void expect(size_t bytes) const;

 private:
  friend class Object;
  template <typename Kept, typename... Arguments>
  Kept* make(size_t bytes, Arguments&&... arguments);
  [[noreturn]] static void out_of_steps();
  void discard(Object* object);

  size_t bytes_left_;
  uint64_t steps_left_;
  Object* objects_ = nullptr;  // all that live
  std::vector<Object*> dead_;
  bool clearing_ = false;
};

// Throws Error(MLCB_ERROR_ARGUMENT); the interpreter adds the template's line.
[[noreturn]] void fail(const std::string& message);

}  // namespace mlcb::jinja
