// Tells apart what a model writes: text, reasoning, tool calls.
#pragma once
#include <memory>
#include <string>
#include <string_view>

namespace mlcb {

class OutputParser {
 public:
  // Formats as chat.json names them; empty: that kind of part is not looked for. Throws
  // Error(MLCB_ERROR_UNSUPPORTED) for a name that it does not know.
  static std::unique_ptr<OutputParser> create(const std::string& tool_format,
                                              const std::string& reasoning_format);
  virtual ~OutputParser() = default;
  // Reads the end of the prompt, before the first piece: some prompts open the reasoning, or close
  // it, which reasoning_format alone cannot tell.
  virtual void read_prompt(std::string_view prompt) = 0;
  // The deltas of the next piece as a JSON array: see mlcb_output_parser_push. What could begin a
  // marker is held back; a tool call is held back until it is whole, since only then is it known to
  // be one.
  virtual std::string push(std::string_view text, bool last) = 0;
};

// See mlcb_tool_grammar: the text of a structure.
std::string tool_grammar(const std::string& tool_format, const std::string& tools_json,
                         const std::string& tool_choice_json, bool parallel);

}  // namespace mlcb
