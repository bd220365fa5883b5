#include "text/conversation.h"

#include <algorithm>
#include <ctime>
#include <initializer_list>

#include "core/error.h"
#include "core/json.h"
#include "jinja/json_text.h"
#include "jinja/python.h"
#include "jinja/python_text.h"

namespace mlcb {
namespace {

using jinja::DictObject;
using jinja::Heap;
using jinja::Kind;
using jinja::Value;
using Items = std::vector<std::pair<Value, Value>>;

constexpr char kMark[] = "<<the text goes on here>> ";

[[noreturn]] void refuse(const std::string& what) { throw Error(MLCB_ERROR_ARGUMENT, what); }

bool is_list(const Value& value) { return value.is_sequence(jinja::Flavor::kList); }

const Value* find(const Items& items, std::string_view key) {
  for (const auto& [name, value] : items) {
    if (name.text() == key) return &value;
  }
  return nullptr;
}

bool read_flag(const Value& value, const char* key) {
  if (!value.is(Kind::kBool)) refuse(std::string(key) + ": expected true or false");
  return value.as_bool();
}

// ---- content ----

Value join_parts(Heap& heap, const Value& parts) {
  std::string text;
  bool first = true;
  for (const Value& part : parts.sequence().items) {
    if (!first) text += "\n";
    first = false;
    text += part.dict().find("text")->text();
  }
  return heap.string(std::move(text));
}

Value styled_content(Heap& heap, const Value& content, MessageStyle::Content style,
                     const std::string& where) {
  if (content.is_string()) {
    if (style != MessageStyle::Content::kParts) return content;
    const Value part =
        heap.dict({{heap.string("type"), heap.string("text")}, {heap.string("text"), content}});
    return heap.list({part});
  }
  if (!is_list(content)) refuse(where + ".content: expected a text or a list of parts");
  for (const Value& part : content.sequence().items) {
    const Value* type = part.is(Kind::kDict) ? part.dict().find("type") : nullptr;
    const Value* text = part.is(Kind::kDict) ? part.dict().find("text") : nullptr;
    if (type == nullptr || !type->is_string()) refuse(where + ".content: a part has no \"type\"");
    if (type->text() != "text") {
      refuse(where + ".content: parts of type " + json_quote(type->text()) +
             " are not supported (text is)");
    }
    if (text == nullptr || !text->is_string()) refuse(where + ".content: a part has no \"text\"");
  }
  return style == MessageStyle::Content::kText ? join_parts(heap, content) : content;
}

// ---- tool calls ----

Value styled_arguments(Heap& heap, const Value& arguments, MessageStyle::Arguments style) {
  if (arguments.is_string() && style == MessageStyle::Arguments::kObject) {
    try {
      Value parsed = jinja::parse_json(heap, arguments.text(), "arguments");
      if (parsed.is(Kind::kDict)) return parsed;
    } catch (const Error&) {
      // What a model wrote need not be JSON; the template gets it as it is.
    }
    return arguments;
  }
  if (arguments.is(Kind::kDict) && style == MessageStyle::Arguments::kText) {
    return heap.string(jinja::dump_json(arguments, {}));
  }
  return arguments;
}

Value styled_calls(Heap& heap, const Value& calls, MessageStyle::Arguments style,
                   const std::string& where) {
  if (!is_list(calls)) refuse(where + ".tool_calls: expected a list");
  std::vector<Value> styled;
  for (const Value& call : calls.sequence().items) {
    if (!call.is(Kind::kDict)) refuse(where + ".tool_calls: expected objects");
    const Value* function = call.dict().find("function");
    if (function == nullptr || !function->is(Kind::kDict)) {
      styled.push_back(call);
      continue;
    }
    Items inner = function->dict().items;
    for (auto& [key, value] : inner) {
      if (key.text() == "arguments") value = styled_arguments(heap, value, style);
    }
    Items outer = call.dict().items;
    const Value rebuilt = heap.dict(std::move(inner));
    for (auto& [key, value] : outer) {
      if (key.text() == "function") value = rebuilt;
    }
    styled.push_back(heap.dict(std::move(outer)));
  }
  return heap.list(std::move(styled));
}

// ---- messages ----

// The reasoning of a message has had several names: "reasoning_content" is the one that templates
// read, and "thinking" gpt-oss's.
void name_reasoning(Heap& heap, Items* message) {
  Value reasoning;
  for (const char* name : {"reasoning_content", "thinking", "reasoning"}) {
    const Value* found = find(*message, name);
    if (found != nullptr && !reasoning.given()) reasoning = *found;
  }
  if (!reasoning.given()) return;
  Items named;
  const Value* thinking = find(*message, "thinking");
  named.emplace_back(heap.string("thinking"), thinking != nullptr ? *thinking : reasoning);
  bool has_content = false;
  for (auto& [key, value] : *message) {
    if (key.text() == "thinking") continue;
    const bool content = key.text() == "reasoning_content";
    has_content |= content;
    named.emplace_back(key, content ? reasoning : value);
  }
  if (!has_content) named.emplace_back(heap.string("reasoning_content"), reasoning);
  *message = std::move(named);
}

Value read_message(Heap& heap, const Value& given, const MessageStyle& style,
                   const std::string& where) {
  if (!given.is(Kind::kDict)) refuse(where + ": expected an object with a \"role\"");
  Items message;
  bool has_role = false;
  for (const auto& [key, value] : given.dict().items) {
    if (value.is(Kind::kNone)) continue;
    Value kept = value;
    if (key.text() == "role") {
      if (!value.is_string()) refuse(where + ".role: expected a text");
      has_role = true;
    } else if (key.text() == "content") {
      kept = styled_content(heap, value, style.content, where);
    } else if (key.text() == "tool_calls") {
      kept = styled_calls(heap, value, style.arguments, where);
    }
    message.emplace_back(key, std::move(kept));
  }
  if (!has_role) refuse(where + ": \"role\" is missing");
  name_reasoning(heap, &message);
  return heap.dict(std::move(message));
}

Value read_messages(Heap& heap, const Value& given, const MessageStyle& style) {
  if (!is_list(given)) refuse("messages: expected a list of objects");
  std::vector<Value> messages;
  for (size_t i = 0; i < given.sequence().items.size(); ++i) {
    messages.push_back(read_message(heap, given.sequence().items[i], style,
                                    "messages[" + std::to_string(i) + "]"));
  }
  if (messages.empty()) refuse("messages: a conversation needs at least one");
  return heap.list(std::move(messages));
}

Value read_tools(const Value& given) {
  if (given.is(Kind::kNone)) return given;
  if (!is_list(given)) refuse("tools: expected a list of objects");
  for (const Value& tool : given.sequence().items) {
    if (!tool.is(Kind::kDict)) refuse("tools: expected objects");
  }
  return given.sequence().items.empty() ? Value::none() : given;
}

Value read_variables(const Value& given) {
  if (!given.is(Kind::kDict)) refuse("variables: expected an object");
  for (const auto& item : given.dict().items) {
    for (const char* own : {"messages", "tools", "add_generation_prompt"}) {
      if (item.first.text() == own) {
        refuse("variables: " + json_quote(own) + " has a place of its own in the conversation");
      }
    }
  }
  return given;
}

}  // namespace

Conversation read_conversation(Heap& heap, const std::string& json, const MessageStyle& style) {
  const Value given = jinja::parse_json(heap, json, "conversation");
  Conversation result;
  result.tools = Value::none();
  result.variables = heap.dict({});
  result.now = static_cast<int64_t>(std::time(nullptr));
  if (is_list(given)) {
    result.messages = read_messages(heap, given, style);
    return result;
  }
  if (!given.is(Kind::kDict)) refuse("conversation: expected a list of messages or an object");
  bool prompt_given = false;
  for (const auto& [key, value] : given.dict().items) {
    const std::string& name = key.text();
    if (name == "messages") {
      result.messages = read_messages(heap, value, style);
    } else if (name == "tools") {
      result.tools = read_tools(value);
    } else if (name == "variables") {
      result.variables = read_variables(value);
    } else if (name == "add_generation_prompt") {
      result.add_generation_prompt = read_flag(value, "add_generation_prompt");
      prompt_given = result.add_generation_prompt;
    } else if (name == "continue_final_message") {
      result.continue_final_message = read_flag(value, "continue_final_message");
    } else if (name == "now") {
      // Up to the year 9999.
      if (!value.is(Kind::kInt) || value.as_int() < 0 || value.as_int() > 253402300799) {
        refuse("now: expected a whole number of seconds since 1970");
      }
      result.now = value.as_int();
    } else {
      refuse("conversation: key " + json_quote(name) + " is not known");
    }
  }
  if (!result.messages.given()) refuse("conversation: \"messages\" is missing");
  if (result.continue_final_message) {
    if (prompt_given) {
      refuse("conversation: continue_final_message and add_generation_prompt exclude each other");
    }
    result.add_generation_prompt = false;
  }
  return result;
}

void mark_final_message(Heap& heap, Conversation* conversation) {
  std::vector<Value> messages = conversation->messages.sequence().items;
  Items last = messages.back().dict().items;
  bool marked = false;
  for (auto& [key, value] : last) {
    if (key.text() != "content") continue;
    if (value.is_string()) {
      value = heap.string(value.text() + kMark);
      marked = true;
    } else if (is_list(value) && !value.sequence().items.empty()) {
      std::vector<Value> parts = value.sequence().items;
      Items part = parts.back().dict().items;
      for (auto& [part_key, text] : part) {
        if (part_key.text() == "text") text = heap.string(text.text() + kMark);
      }
      parts.back() = heap.dict(std::move(part));
      value = heap.list(std::move(parts));
      marked = true;
    }
  }
  if (!marked) refuse("continue_final_message: the last message has no content to go on with");
  messages.back() = heap.dict(std::move(last));
  conversation->messages = heap.list(std::move(messages));
}

std::string cut_at_mark(std::string text) {
  const std::string_view mark(kMark, sizeof(kMark) - 2);  // a template may trim the space
  const size_t at = text.rfind(mark);
  if (at == std::string::npos) {
    refuse("continue_final_message: the chat template leaves the last message out, or changes it");
  }
  const bool trimmed = text.compare(at, sizeof(kMark) - 1, kMark) != 0;
  text.resize(at);
  // Then it trims what comes before it too.
  if (trimmed) text.resize(jinja::strip(text, false, true).size());
  return text;
}

}  // namespace mlcb
