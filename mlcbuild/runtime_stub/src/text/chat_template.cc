#include "text/chat_template.h"

#include "core/error.h"
#include "core/utf8.h"
#include "text/unicode.h"

namespace mlcb {
namespace {

// What Jinja's trim strips: ASCII white space and, as in Python, the separators of U+001C..U+001F,
// and Unicode white space.
std::string strip(const std::string& text) {
  auto is_space = [](uint32_t code) {
    return unicode_is_white_space(code) || (code >= 0x1C && code <= 0x1F);
  };
  const char* begin = text.data();
  const char* end = begin + text.size();
  while (begin != end) {
    const Utf8Char c = utf8_decode(begin, end);
    if (c.size == 0 || !is_space(c.code)) break;
    begin += c.size;
  }
  while (end != begin) {
    const char* p = end - 1;
    while (p != begin && (static_cast<uint8_t>(*p) & 0xC0) == 0x80) --p;
    const Utf8Char c = utf8_decode(p, end);
    if (c.size != static_cast<size_t>(end - p) || !is_space(c.code)) break;
    end = p;
  }
  return std::string(begin, end);
}

std::string optional_string(const Json& json, const char* key) {
  const Json* value = json.find(key);
  return value == nullptr || value->is_null() ? std::string() : value->as_string();
}

[[noreturn]] void refuse(const std::string& what) { throw Error(MLCB_ERROR_ARGUMENT, what); }

}  // namespace

ChatTemplate ChatTemplate::from_json(const Json& json) {
  const int64_t version = json.at("chat_version").as_int();
  if (version != 1) {
    throw Error(MLCB_ERROR_VERSION, "chat.json has chat_version " + std::to_string(version) +
                                        ", this runtime reads version 1");
  }
  ChatTemplate result;
  result.bos_ = optional_string(json, "bos");
  if (const Json* text = json.find("default_system"); text != nullptr && !text->is_null()) {
    result.has_default_system_ = true;
    result.default_system_ = text->as_string();
  }
  const Json& roles = json.at("roles");
  for (const auto& [name, turn] : roles.members()) {
    Turn* target = name == "system"      ? &result.system_
                   : name == "user"      ? &result.user_
                   : name == "assistant" ? &result.assistant_
                                         : nullptr;
    if (target == nullptr) {
      throw Error(MLCB_ERROR_UNSUPPORTED, "chat.json: role " + json_quote(name) +
                                              " is not supported (system, user, assistant are)");
    }
    target->prefix = turn.at("prefix").as_string();
    target->suffix = turn.at("suffix").as_string();
    target->present = true;
  }
  if (result.has_default_system_ && !result.system_.present) {
    throw Error(MLCB_ERROR_BUNDLE, "chat.json: default_system is given, but no system role");
  }
  result.generation_prompt_ = optional_string(json, "generation_prompt");
  const Json* trim = json.find("trim_content");
  result.trim_content_ = trim != nullptr && trim->as_bool();
  if (const Json* ids = json.find("stop_token_ids")) {
    for (const Json& id : ids->items()) {
      const int64_t value = id.as_int();
      if (value < 0 || value > INT32_MAX) {
        throw Error(MLCB_ERROR_BUNDLE,
                    "chat.json: stop_token_ids has " + std::to_string(value) + ", not a token id");
      }
      result.stop_token_ids_.push_back(static_cast<int32_t>(value));
    }
  }
  if (const Json* strings = json.find("stop_strings")) {
    for (const Json& text : strings->items()) result.stop_strings_.push_back(text.as_string());
  }
  if (const Json* id = json.find("add_bos_token_id"); id != nullptr && !id->is_null()) {
    const int64_t value = id->as_int();
    if (value < 0 || value > INT32_MAX) {
      throw Error(MLCB_ERROR_BUNDLE,
                  "chat.json: add_bos_token_id is " + std::to_string(value) + ", not a token id");
    }
    result.bos_token_id_ = static_cast<int32_t>(value);
  }
  return result;
}

std::vector<ChatMessage> ChatTemplate::parse_messages(const std::string& messages_json) {
  Json json;
  try {
    json = Json::parse(messages_json, "messages");
  } catch (const Error& error) {
    refuse(error.what());
  }
  if (!json.is_array()) refuse("messages: expected a list of {\"role\", \"content\"} objects");
  std::vector<ChatMessage> messages;
  for (size_t i = 0; i < json.size(); ++i) {
    const Json& item = json.items()[i];
    const std::string where = "messages[" + std::to_string(i) + "]";
    if (!item.is_object()) refuse(where + ": expected an object with \"role\" and \"content\"");
    ChatMessage message;
    bool has_role = false, has_content = false;
    for (const auto& [key, value] : item.members()) {
      if (key != "role" && key != "content") {
        refuse(where + ": key " + json_quote(key) + " is not supported (role, content are)");
      }
      if (!value.is_string()) refuse(where + "." + key + ": expected a string");
      (key == "role" ? message.role : message.content) = value.as_string();
      (key == "role" ? has_role : has_content) = true;
    }
    if (!has_role || !has_content) {
      refuse(where + ": " + (has_role ? "\"content\"" : "\"role\"") + " is missing");
    }
    messages.push_back(std::move(message));
  }
  return messages;
}

std::string ChatTemplate::render(const std::vector<ChatMessage>& messages,
                                 bool add_generation_prompt) const {
  if (messages.empty()) refuse("a conversation needs at least one message");
  std::string text = bos_;
  auto add = [&](const Turn& turn, const std::string& content) {
    text += turn.prefix;
    text += trim_content_ ? strip(content) : content;
    text += turn.suffix;
  };
  if (has_default_system_ && messages[0].role != "system") {
    text += system_.prefix + default_system_ + system_.suffix;
  }
  for (size_t i = 0; i < messages.size(); ++i) {
    const std::string& role = messages[i].role;
    const Turn* turn = role == "system"      ? &system_
                       : role == "user"      ? &user_
                       : role == "assistant" ? &assistant_
                                             : nullptr;
    const std::string where = "message " + std::to_string(i) + ": ";
    if (turn == nullptr) {
      refuse(where + "unknown role " + json_quote(role) + "; use system, user or assistant");
    }
    if (!turn->present) refuse(where + "this model has no role " + json_quote(role));
    if (turn == &system_ && i > 0) refuse(where + "a system message can only be the first");
    add(*turn, messages[i].content);
  }
  if (add_generation_prompt) text += generation_prompt_;
  return text;
}

}  // namespace mlcb
