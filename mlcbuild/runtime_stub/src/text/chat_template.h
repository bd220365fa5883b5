// Renders conversations as chat.json says.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "core/json.h"

namespace mlcb {

struct ChatMessage {
  std::string role;
  std::string content;
};

class ChatTemplate {
 public:
  static ChatTemplate from_json(const Json& chat_json);
  // [{"role":..., "content":...}, ...]; throws Error(MLCB_ERROR_ARGUMENT) on anything else.
  static std::vector<ChatMessage> parse_messages(const std::string& messages_json);

  std::string render(const std::vector<ChatMessage>& messages, bool add_generation_prompt) const;

  const std::vector<int32_t>& stop_token_ids() const { return stop_token_ids_; }
  const std::vector<std::string>& stop_strings() const { return stop_strings_; }
  int32_t bos_token_id() const { return bos_token_id_; }  // -1: none

 private:
  struct Turn {
    std::string prefix, suffix;
    bool present = false;
  };
  std::string bos_, default_system_, generation_prompt_;
  bool has_default_system_ = false, trim_content_ = false;
  Turn system_, user_, assistant_;
  std::vector<int32_t> stop_token_ids_;
  std::vector<std::string> stop_strings_;
  int32_t bos_token_id_ = -1;
};

}  // namespace mlcb
