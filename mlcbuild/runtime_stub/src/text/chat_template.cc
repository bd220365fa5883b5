#include "text/chat_template.h"

#include <cstring>

#include "core/error.h"
#include "jinja/interpreter.h"
#include "jinja/parser.h"
#include "text/output_parser.h"

namespace mlcb {
namespace {

// What one render may take: far more than a conversation that fills the longest context windows.
constexpr size_t kMaxBytes = size_t{256} << 20;
constexpr uint64_t kMaxSteps = 30000000;  // a few seconds

const Json* find_value(const Json& json, const char* key) {
  const Json* value = json.find(key);
  return value == nullptr || value->is_null() ? nullptr : value;
}

std::string optional_string(const Json& json, const char* key) {
  const Json* value = find_value(json, key);
  return value == nullptr ? std::string() : value->as_string();
}

int32_t token_id(const Json& json, const char* key) {
  const int64_t value = json.as_int();
  if (value < 0 || value > INT32_MAX) {
    throw Error(MLCB_ERROR_BUNDLE, std::string("chat.json: ") + key + " has " +
                                       std::to_string(value) + ", not a token id");
  }
  return static_cast<int32_t>(value);
}

std::vector<int32_t> token_ids(const Json& json, const char* key) {
  std::vector<int32_t> ids;
  if (const Json* values = find_value(json, key)) {
    for (const Json& id : values->items()) ids.push_back(token_id(id, key));
  }
  return ids;
}

std::shared_ptr<const jinja::Template> parse_template(const Json& json, const char* key) {
  const Json* source = find_value(json, key);
  if (source == nullptr) return nullptr;
  return std::make_shared<const jinja::Template>(jinja::parse(source->as_string()));
}

// The position of a word among those that a key may hold.
int one_of(const Json& json, const char* key, std::initializer_list<const char*> words) {
  const std::string found = optional_string(json, key);
  if (found.empty()) return 0;
  int index = 0;
  for (const char* word : words) {
    if (found == word) return index;
    ++index;
  }
  throw Error(MLCB_ERROR_UNSUPPORTED, std::string("chat.json: ") + key + " is " +
                                          json_quote(found) + ", which this runtime does not know");
}

}  // namespace

ChatTemplate ChatTemplate::from_json(const Json& json) {
  const int64_t version = json.at("chat_version").as_int();
  if (version != 2) {
    throw Error(MLCB_ERROR_VERSION, "chat.json has chat_version " + std::to_string(version) +
                                        ", this runtime reads version 2");
  }
  ChatTemplate result;
  json.at("template");  // null, but there
  result.template_ = parse_template(json, "template");
  result.tool_template_ = parse_template(json, "tool_template");
  if (const Json* tokens = find_value(json, "tokens")) {
    for (const auto& [name, text] : tokens->members()) {
      result.tokens_.emplace_back(name, text.as_string());
    }
  }
  result.style_.content =
      static_cast<MessageStyle::Content>(one_of(json, "content_style", {"any", "text", "parts"}));
  result.style_.arguments = static_cast<MessageStyle::Arguments>(
      one_of(json, "arguments_style", {"any", "object", "text"}));
  const Json* takes_tools = find_value(json, "takes_tools");
  result.takes_tools_ = takes_tools != nullptr && takes_tools->as_bool();
  result.stop_token_ids_ = token_ids(json, "stop_token_ids");
  result.kept_token_ids_ = token_ids(json, "kept_special_tokens");
  if (const Json* strings = find_value(json, "stop_strings")) {
    for (const Json& text : strings->items()) result.stop_strings_.push_back(text.as_string());
  }
  if (const Json* id = find_value(json, "add_bos_token_id")) {
    result.bos_token_id_ = token_id(*id, "add_bos_token_id");
  }
  result.tool_format_ = optional_string(json, "tool_format");
  result.reasoning_format_ = optional_string(json, "reasoning_format");
  OutputParser::create(result.tool_format_, result.reasoning_format_);  // both are known
  return result;
}

std::string ChatTemplate::render(const std::string& conversation_json) const {
  if (!present()) {
    throw Error(MLCB_ERROR_UNSUPPORTED, "the model has no chat template\nhint: give it raw text");
  }
  jinja::Heap heap(kMaxBytes, kMaxSteps);
  Conversation conversation = read_conversation(heap, conversation_json, style_);
  const bool tools = !conversation.tools.is(jinja::Kind::kNone);
  if (tools && !takes_tools_) {
    throw Error(MLCB_ERROR_UNSUPPORTED, "the model's chat template has no place for tools");
  }
  if (conversation.continue_final_message) mark_final_message(heap, &conversation);
  const jinja::Template& program =
      tools && tool_template_ != nullptr ? *tool_template_ : *template_;
  std::string text;
  {
    jinja::Interpreter interpreter(program, &heap, conversation.now);
    for (const auto& [name, token] : tokens_) interpreter.set(name, heap.string(token));
    interpreter.set("messages", conversation.messages);
    interpreter.set("tools", conversation.tools);
    interpreter.set("documents", jinja::Value::none());
    interpreter.set("add_generation_prompt",
                    jinja::Value::boolean(conversation.add_generation_prompt));
    for (const auto& [name, value] : conversation.variables.dict().items) {
      interpreter.set(name.text(), value);
    }
    text = interpreter.run();
  }
  return conversation.continue_final_message ? cut_at_mark(std::move(text)) : text;
}

}  // namespace mlcb
