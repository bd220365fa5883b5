#include "text/tool_call.h"

#include "core/error.h"
#include "core/json.h"
#include "text/json_scanner.h"

namespace mlcb {
namespace {

bool parse(std::string_view text, Json* json) {
  try {
    *json = Json::parse(text, "tool call");
    return true;
  } catch (const Error&) {
    return false;  // a model may write anything
  }
}

std::string_view skip_space(std::string_view text) {
  const size_t at = text.find_first_not_of(" \t\r\n");
  return at == std::string_view::npos ? std::string_view() : text.substr(at);
}

// Where the string that text starts with ends.
size_t string_end(std::string_view text) {
  for (size_t i = 1; i < text.size(); ++i) {
    if (text[i] == '\\') {
      ++i;
    } else if (text[i] == '"') {
      return i + 1;
    }
  }
  return text.size();
}

// The text of the value that text, of valid JSON, starts with.
std::string_view value_text(std::string_view text) {
  if (text[0] == '"') return text.substr(0, string_end(text));
  if (text[0] == '{' || text[0] == '[') {
    JsonScanner scanner;
    return text.substr(0, scanner.scan(text));
  }
  return text.substr(0, text.find_first_of(",]} \t\r\n"));
}

// The text of a member's value in the text of an object, exactly as it stands there.
std::string_view member_text(std::string_view object, std::string_view wanted) {
  std::string_view rest = skip_space(object.substr(1));
  while (!rest.empty() && rest[0] == '"') {
    const std::string_view quoted = rest.substr(0, string_end(rest));
    rest = skip_space(rest.substr(quoted.size()));
    rest = skip_space(rest.substr(1));  // the colon
    const std::string_view value = value_text(rest);
    Json key;
    if (parse(quoted, &key) && key.is_string() && key.as_string() == wanted) return value;
    rest = skip_space(rest.substr(value.size()));
    if (rest.empty() || rest[0] != ',') break;
    rest = skip_space(rest.substr(1));
  }
  return std::string_view();
}

}  // namespace

bool is_json_object(std::string_view text) {
  Json json;
  return parse(text, &json) && json.is_object();
}

bool read_tool_call(std::string_view text, ToolCall* call) {
  text = skip_space(text);
  Json json;
  if (!parse(text, &json) || !json.is_object()) return false;
  const Json* name = json.find("name");
  const Json* inner = json.find("function");
  if (name == nullptr && inner != nullptr) {
    if (inner->is_object()) return read_tool_call(member_text(text, "function"), call);
    name = inner;
  }
  if (name == nullptr || !name->is_string() || name->as_string().empty()) return false;
  call->name = name->as_string();
  const char* key = json.find("arguments") != nullptr ? "arguments" : "parameters";
  const Json* arguments = json.find(key);
  if (arguments == nullptr || arguments->is_null()) {
    call->arguments = "{}";
  } else if (arguments->is_object()) {
    call->arguments = member_text(text, key);
  } else if (arguments->is_string() && is_json_object(arguments->as_string())) {
    call->arguments = arguments->as_string();
  } else {
    return false;
  }
  return true;
}

bool read_tool_calls(std::string_view text, std::vector<ToolCall>* calls) {
  text = skip_space(text);
  if (text.empty()) return false;
  ToolCall call;
  if (text[0] == '{') {
    if (!read_tool_call(text, &call)) return false;
    calls->push_back(std::move(call));
    return true;
  }
  Json json;
  if (!parse(text, &json) || !json.is_array() || json.size() == 0) return false;
  std::string_view rest = skip_space(text.substr(1));
  while (!rest.empty() && rest[0] != ']') {
    const std::string_view value = value_text(rest);
    if (!read_tool_call(value, &call)) return false;
    calls->push_back(call);
    rest = skip_space(rest.substr(value.size()));
    if (!rest.empty() && rest[0] == ',') rest = skip_space(rest.substr(1));
  }
  return true;
}

bool may_be_tool_call(std::string_view text) {
  text = skip_space(text.substr(1));
  if (text.empty()) return true;
  if (text[0] != '"') return false;
  for (const std::string_view key :
       {"\"name\"", "\"parameters\"", "\"arguments\"", "\"type\"", "\"function\"", "\"id\""}) {
    const size_t size = std::min(key.size(), text.size());
    if (text.substr(0, size) == key.substr(0, size)) return true;
  }
  return false;
}

}  // namespace mlcb
