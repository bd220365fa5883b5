// Runs the chat parts on commands, one JSON object a line on stdin, one JSON value a line on
// stdout. For tests: texts come out as hex.
#include <cstdio>
#include <iostream>
#include <memory>
#include <string>

#include "core/error.h"
#include "core/json.h"
#include "driver_loop.h"
#include "jinja/interpreter.h"
#include "jinja/json_text.h"
#include "jinja/parser.h"
#include "text/chat_template.h"
#include "text/output_parser.h"

namespace mlcb {
namespace {

const std::string& text_or(const Json& command, const char* key, const std::string& fallback) {
  const Json* value = command.find(key);
  return value == nullptr ? fallback : value->as_string();
}

class Driver {
 public:
  std::string run(const Json& command) {
    const std::string& op = command.at("op").as_string();
    if (op == "template") return render_template(command);
    if (op == "chat") {
      chat_ = std::make_unique<ChatTemplate>(ChatTemplate::from_json(command.at("chat")));
      return "null";
    }
    if (op == "render") return quoted_hex(chat().render(command.at("conversation").as_string()));
    if (op == "about") return about();
    if (op == "parser") {
      static const std::string kNone;
      parser_ = OutputParser::create(text_or(command, "tools", kNone),
                                     text_or(command, "reasoning", kNone));
      return "null";
    }
    if (op == "prompt") {
      parser_->read_prompt(command.at("text").as_string());
      return "null";
    }
    if (op == "push") {
      const Json* last = command.find("last");
      return parser_->push(from_hex(command.at("hex").as_string()),
                           last != nullptr && last->as_bool());
    }
    if (op == "grammar") {
      return tool_grammar(command.at("format").as_string(), command.at("tools").as_string(),
                          command.at("choice").as_string(), command.at("parallel").as_bool());
    }
    throw Error(MLCB_ERROR_ARGUMENT, "unknown op " + op);
  }

 private:
  const ChatTemplate& chat() const {
    if (!chat_) throw Error(MLCB_ERROR_ARGUMENT, "no chat.json is loaded");
    return *chat_;
  }

  // A template with variables, without anything around it. The source goes in as hex: it need not
  // be UTF-8.
  static std::string render_template(const Json& command) {
    const jinja::Template program = jinja::parse(from_hex(command.at("source").as_string()));
    const Json* now = command.find("now");
    std::string text;
    {
      const Json* steps = command.find("steps");
      jinja::Heap heap(size_t{256} << 20,
                       steps == nullptr ? 30000000 : static_cast<uint64_t>(steps->as_int()));
      const jinja::Value variables =
          jinja::parse_json(heap, text_or(command, "variables", "{}"), "variables");
      jinja::Interpreter interpreter(program, &heap, now == nullptr ? 0 : now->as_int());
      for (const auto& [name, value] : variables.dict().items) interpreter.set(name.text(), value);
      text = interpreter.run();
    }
    return quoted_hex(text);
  }

  std::string about() const {
    std::string ids = "[";
    for (const int32_t id : chat().stop_token_ids()) {
      ids += (ids.size() > 1 ? "," : "") + std::to_string(id);
    }
    std::string kept = "[";
    for (const int32_t id : chat().kept_token_ids()) {
      kept += (kept.size() > 1 ? "," : "") + std::to_string(id);
    }
    std::string strings = "[";
    for (const std::string& text : chat().stop_strings()) {
      strings += (strings.size() > 1 ? "," : "") + json_quote(text);
    }
    return std::string("{\"present\":") + (chat().present() ? "true" : "false") +
           ",\"stop_token_ids\":" + ids + "],\"kept_token_ids\":" + kept +
           "],\"stop_strings\":" + strings +
           "],\"bos_token_id\":" + std::to_string(chat().bos_token_id()) +
           ",\"tool_format\":" + json_quote(chat().tool_format()) +
           ",\"reasoning_format\":" + json_quote(chat().reasoning_format()) + "}";
  }

  std::unique_ptr<ChatTemplate> chat_;
  std::unique_ptr<OutputParser> parser_;
};

}  // namespace
}  // namespace mlcb

int main() {
  mlcb::Driver driver;
  return mlcb::answer_commands(&driver);
}
