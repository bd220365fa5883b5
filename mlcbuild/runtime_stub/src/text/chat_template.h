// Renders conversations with the model's own template, as chat.json holds it.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/json.h"
#include "text/conversation.h"

namespace mlcb {

namespace jinja {
struct Template;
}

class ChatTemplate {
 public:
  // Throws Error: _VERSION, _BUNDLE (also for a template that is not valid), _UNSUPPORTED (for one
  // that uses what the runtime does not have).
  static ChatTemplate from_json(const Json& chat_json);

  // See mlcb_apply_chat_template. Thread-safe.
  std::string render(const std::string& conversation_json) const;

  bool present() const { return template_ != nullptr; }  // whether the model has a template
  const std::vector<int32_t>& stop_token_ids() const { return stop_token_ids_; }
  const std::vector<std::string>& stop_strings() const { return stop_strings_; }
  int32_t bos_token_id() const { return bos_token_id_; }           // -1: none
  const std::string& tool_format() const { return tool_format_; }  // empty: none
  const std::string& reasoning_format() const { return reasoning_format_; }
  // Special tokens that stay in the text of an answer: OutputParser looks for them.
  const std::vector<int32_t>& kept_token_ids() const { return kept_token_ids_; }

 private:
  std::shared_ptr<const jinja::Template> template_, tool_template_;
  std::vector<std::pair<std::string, std::string>> tokens_;  // name and text
  MessageStyle style_;
  bool takes_tools_ = false;
  std::vector<int32_t> stop_token_ids_;
  std::vector<std::string> stop_strings_;
  int32_t bos_token_id_ = -1;
  std::string tool_format_, reasoning_format_;
  std::vector<int32_t> kept_token_ids_;
};

}  // namespace mlcb
