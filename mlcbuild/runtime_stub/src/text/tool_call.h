// Tool calls in a model's text, and the JSON that they are written in.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace mlcb {

struct ToolCall {
  std::string name;
  std::string arguments;  // the text of a JSON object
};

// A call from {"name": ..., "arguments": {...}} ("parameters" is taken for "arguments", a text that
// holds an object for the object); false if it is none.
bool read_tool_call(std::string_view json, ToolCall* call);
// The same for one such object or a list of them.
bool read_tool_calls(std::string_view json, std::vector<ToolCall>* calls);
// Whether the text of an object may still become a call, judged by its first key.
bool may_be_tool_call(std::string_view text);
bool is_json_object(std::string_view text);

}  // namespace mlcb
