// Iterating over values and taking parts of them.
#include <algorithm>

#include "jinja/python.h"
#include "jinja/python_text.h"

namespace mlcb::jinja {

bool iterable(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
    case Kind::kString:
    case Kind::kSequence:
    case Kind::kDict:
    case Kind::kLoop:
      return true;
    default:
      return false;
  }
}

Value iterate(Heap& heap, const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
      return heap.list({});
    case Kind::kString: {
      const std::vector<std::string_view> parts = characters(value.text());
      heap.expect(parts.size() * (sizeof(StringObject) + sizeof(Value)));
      heap.work(2 * parts.size());
      std::vector<Value> items;
      items.reserve(parts.size());
      for (const std::string_view part : parts) items.push_back(heap.string(std::string(part)));
      return heap.list(std::move(items));
    }
    case Kind::kSequence: {
      SequenceObject& sequence = value.sequence();
      if (sequence.flavor != Flavor::kIterator) return value;
      if (sequence.consumed) return heap.list({});
      sequence.consumed = true;
      return value;
    }
    case Kind::kDict: {
      std::vector<Value> items;
      items.reserve(value.dict().items.size());
      for (const auto& item : value.dict().items) items.push_back(item.first);
      heap.work(items.size());
      return heap.list(std::move(items));
    }
    case Kind::kLoop:
      fail("a loop cannot be iterated over");
    default:
      fail(std::string(type_name(value)) + " cannot be iterated over");
  }
}

namespace {

// The part of a key that cannot be one, or nullptr.
const Value* find_unhashable(const Value& key, int depth) {
  check_depth(depth);
  if (key.is(Kind::kDict)) return &key;
  if (!key.is(Kind::kSequence)) return nullptr;
  switch (key.sequence().flavor) {
    case Flavor::kTuple:
      break;
    case Flavor::kRange:
    case Flavor::kValues:
    case Flavor::kIterator:
      return nullptr;
    default:
      return &key;
  }
  spend(key.sequence(), 1 + key.sequence().items.size());
  for (const Value& item : key.sequence().items) {
    if (const Value* found = find_unhashable(item, depth + 1)) return found;
  }
  return nullptr;
}

}  // namespace

void require_hashable(const Value& key) {
  if (const Value* found = find_unhashable(key, 0)) {
    fail(std::string(type_name(*found)) + " cannot be a key");
  }
}

Value find_item(Heap& heap, const Value& value, const Value& key) {
  switch (value.kind()) {
    case Kind::kUndefined:
      fail_undefined(value);
    case Kind::kString: {
      if (!key.is_integer()) return Value();
      const std::string& text = value.text();
      heap.work(text.size() / 64);
      int64_t index = key.as_int();
      if (index < 0) index += character_count(text);
      if (index < 0) return Value();
      const size_t begin = character_offset(text, index);
      if (begin >= text.size()) return Value();
      return heap.string(text.substr(begin, character_offset(text.substr(begin, 4), 1)));
    }
    case Kind::kSequence: {
      const SequenceObject& sequence = value.sequence();
      const bool subscripts =
          sequence.flavor <= Flavor::kTuple || sequence.flavor == Flavor::kRange;
      if (!subscripts || !key.is_integer()) return Value();
      const int64_t size = static_cast<int64_t>(sequence.items.size());
      const int64_t index = key.as_int() < 0 ? key.as_int() + size : key.as_int();
      if (index < 0 || index >= size) return Value();
      return sequence.items[static_cast<size_t>(index)];
    }
    case Kind::kDict: {
      heap.work(value.dict().items.size() / 8);
      const Value* found = find_unhashable(key, 0) == nullptr ? value.dict().find(key) : nullptr;
      return found == nullptr ? Value() : *found;
    }
    default:
      return Value();
  }
}

Value slice(Heap& heap, const Value& value, const Value& start, const Value& stop,
            const Value& step) {
  if (value.is(Kind::kUndefined)) fail_undefined(value);
  const bool text = value.is_string();
  if (!text && (!value.is(Kind::kSequence) ||
                (value.sequence().flavor > Flavor::kTuple && !value.is_sequence(Flavor::kRange)))) {
    fail(std::string(type_name(value)) + " cannot be sliced");
  }
  const int64_t size = length(value);
  auto bound = [](const Value& given, int64_t fallback) {
    return given.is(Kind::kNone) ? fallback : integer_of(given, "a slice's index");
  };
  const int64_t by = bound(step, 1);
  if (by == 0) fail("a slice's step is zero");
  auto clamp = [&](int64_t index) {
    if (index < 0) index = index < -size ? -1 : index + size;
    if (index < 0) return by < 0 ? int64_t{-1} : int64_t{0};
    if (index >= size) return by < 0 ? size - 1 : size;
    return index;
  };
  const int64_t from = start.is(Kind::kNone) ? (by < 0 ? size - 1 : 0) : clamp(bound(start, 0));
  const int64_t to = stop.is(Kind::kNone) ? (by < 0 ? -1 : size) : clamp(bound(stop, 0));
  const auto in_range = [&](int64_t index) { return by > 0 ? index < to : index > to; };
  // A step beyond the size takes one item; limiting it keeps the index from overflowing.
  const int64_t stride = std::max(-size - 1, std::min(size + 1, by));
  heap.work(static_cast<uint64_t>(size) / 8);
  if (!text) {
    std::vector<Value> items;
    for (int64_t i = from; in_range(i); i += stride) {
      items.push_back(value.sequence().items[static_cast<size_t>(i)]);
    }
    return heap.list(std::move(items),
                     value.is_sequence(Flavor::kTuple) ? Flavor::kTuple : Flavor::kList);
  }
  std::string out;
  if (stride == 1) {
    if (from < to) {
      const size_t begin = character_offset(value.text(), from);
      const size_t end = character_offset(std::string_view(value.text()).substr(begin), to - from);
      out = value.text().substr(begin, end);
    }
  } else {
    const std::vector<std::string_view> parts = characters(value.text());
    for (int64_t i = from; in_range(i); i += stride) out += parts[static_cast<size_t>(i)];
  }
  Value result = heap.string(std::move(out));
  result.string().markup = value.string().markup;
  return result;
}

}  // namespace mlcb::jinja
