// The grammars under which a model must call a tool.
#include <vector>

#include "core/error.h"
#include "core/json.h"
#include "jinja/json_text.h"
#include "jinja/value.h"
#include "text/output_parser.h"

namespace mlcb {
namespace {

using jinja::Kind;
using jinja::Value;

struct Tool {
  std::string name;
  std::string schema;  // JSON
};

[[noreturn]] void bad_tools(const std::string& what) { throw Error(MLCB_ERROR_ARGUMENT, what); }

std::string compact(const Value& value) {
  jinja::JsonStyle style;
  style.item_separator = ",";
  style.key_separator = ":";
  return jinja::dump_json(value, style);
}

std::string literal(const std::string& text) {
  return "{\"type\":\"literal\",\"text\":" + json_quote(text) + "}";
}

std::string list(const char* type, const char* key, const std::vector<std::string>& parts) {
  if (parts.size() == 1) return parts[0];
  std::string out = std::string("{\"type\":\"") + type + "\",\"" + key + "\":[";
  for (size_t i = 0; i < parts.size(); ++i) out += (i > 0 ? "," : "") + parts[i];
  return out + "]}";
}

std::string sequence(const std::vector<std::string>& parts) {
  return list("sequence", "parts", parts);
}

std::string choice(const std::vector<std::string>& options) {
  return list("choice", "options", options);
}

std::string schema(const Tool& tool) {
  return "{\"type\":\"json_schema\",\"schema\":" + tool.schema + "}";
}

// One item, or with parallel calls one and more.
std::string repeat(const std::string& item, const std::string& separator, bool parallel) {
  if (!parallel) return item;
  std::string out = "{\"type\":\"repeat\",\"min\":1,\"max\":null,\"item\":" + item;
  if (!separator.empty()) out += ",\"separator\":" + literal(separator);
  return out + "}";
}

const Value* find(const Value& object, const char* key, Kind kind) {
  const Value* found = object.is(Kind::kDict) ? object.dict().find(key) : nullptr;
  return found != nullptr && found->is(kind) ? found : nullptr;
}

// A function's parameters as a schema: an object, whether they say so or not, and one of the named
// properties alone where nothing tells of others. A function is called with what it knows.
std::string arguments_schema(const Value& parameters) {
  static const char* const kMore[] = {"additionalProperties",
                                      "patternProperties",
                                      "unevaluatedProperties",
                                      "$ref",
                                      "allOf",
                                      "anyOf",
                                      "oneOf"};
  const jinja::DictObject& keys = parameters.dict();
  std::string added;
  if (keys.find("type") == nullptr) added += "\"type\":\"object\",";
  bool closed = keys.find("properties") != nullptr;
  for (const char* key : kMore) closed = closed && keys.find(key) == nullptr;
  if (closed) added += "\"additionalProperties\":false,";
  return "{" + added + compact(parameters).substr(1);
}

std::vector<Tool> named_tools(const Value& json) {
  std::vector<Tool> tools;
  if (!json.is_sequence(jinja::Flavor::kList) || json.sequence().items.empty()) {
    bad_tools("tools: expected a list with at least one tool");
  }
  for (const Value& item : json.sequence().items) {
    const std::string where = "tools[" + std::to_string(tools.size()) + "]";
    const Value* function = find(item, "function", Kind::kDict);
    const Value* name = function == nullptr ? nullptr : find(*function, "name", Kind::kString);
    if (name == nullptr || name->text().empty()) {
      bad_tools(where + ": expected {\"type\": \"function\", \"function\": {\"name\": ...}}");
    }
    for (const Tool& other : tools) {
      if (other.name == name->text()) bad_tools(where + ": a tool has this name already");
    }
    Tool tool;
    tool.name = name->text();
    const Value* parameters = function->dict().find("parameters");
    if (parameters == nullptr || parameters->is(Kind::kNone) ||
        (parameters->is(Kind::kDict) && parameters->dict().items.empty())) {
      tool.schema = "{\"type\":\"object\",\"properties\":{},\"additionalProperties\":false}";
    } else if (parameters->is(Kind::kDict)) {
      const Value* type = parameters->dict().find("type");
      if (type != nullptr && !(type->is_string() && type->text() == "object")) {
        bad_tools(where +
                  ".function.parameters: arguments are an object: expected \"type\": "
                  "\"object\"");
      }
      tool.schema = arguments_schema(*parameters);
    } else {
      bad_tools(where + ".function.parameters: expected a JSON schema");
    }
    tools.push_back(std::move(tool));
  }
  return tools;
}

std::vector<Tool> chosen_tools(std::vector<Tool> tools, const Value& choice_json) {
  if (choice_json.is_string() && choice_json.text() == "required") return tools;
  const Value* function = find(choice_json, "function", Kind::kDict);
  const Value* name = function == nullptr ? nullptr : find(*function, "name", Kind::kString);
  if (name == nullptr) {
    bad_tools(
        "tool_choice: expected \"required\" or {\"type\": \"function\", \"function\": "
        "{\"name\": ...}}");
  }
  for (const Tool& tool : tools) {
    if (tool.name == name->text()) return {tool};
  }
  bad_tools("tool_choice: no tool is called " + json_quote(name->text()));
}

// {"name": "...", <key>: {...}} for one of the tools.
std::string call_object(const std::vector<Tool>& tools, const char* key) {
  std::vector<std::string> options;
  for (const Tool& tool : tools) {
    options.push_back(
        sequence({literal("{\"name\": " + json_quote(tool.name) + ", \"" + key + "\": "),
                  schema(tool), literal("}")}));
  }
  return choice(options);
}

}  // namespace

std::string tool_grammar(const std::string& tool_format, const std::string& tools_json,
                         const std::string& tool_choice_json, bool parallel) {
  OutputParser::create(tool_format, "");  // it is known
  jinja::Heap heap(size_t{64} << 20, 10000000);
  const std::vector<Tool> tools =
      chosen_tools(named_tools(jinja::parse_json(heap, tools_json, "tools")),
                   jinja::parse_json(heap, tool_choice_json, "tool_choice"));
  if (tool_format == "hermes") {
    return repeat(sequence({literal("<tool_call>\n"), call_object(tools, "arguments"),
                            literal("\n</tool_call>")}),
                  "\n", parallel);
  }
  if (tool_format == "llama3") return repeat(call_object(tools, "parameters"), "; ", parallel);
  if (tool_format == "mistral") {
    return sequence({choice({literal("[TOOL_CALLS] ["), literal("[TOOL_CALLS][")}),
                     repeat(call_object(tools, "arguments"), ", ", parallel), literal("]")});
  }
  if (tool_format == "mistral_args") {
    std::vector<std::string> options;
    for (const Tool& tool : tools) {
      options.push_back(sequence({literal("[TOOL_CALLS]" + tool.name + "[ARGS]"), schema(tool)}));
    }
    return repeat(choice(options), "", parallel);
  }
  throw Error(MLCB_ERROR_UNSUPPORTED, "the model has no convention for tool calls");
}

}  // namespace mlcb
