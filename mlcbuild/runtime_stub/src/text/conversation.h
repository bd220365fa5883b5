// What a caller wants rendered, in the form that templates expect.
#pragma once
#include <cstdint>
#include <string>

#include "jinja/value.h"

namespace mlcb {

// How a template wants what OpenAI's API leaves open; chat.json says it.
struct MessageStyle {
  enum class Content : uint8_t { kAny, kText, kParts };
  enum class Arguments : uint8_t { kAny, kObject, kText };
  Content content = Content::kAny;        // a text, or a list of {"type": "text", "text": ...}
  Arguments arguments = Arguments::kAny;  // of a tool call: an object, or its JSON text
};

struct Conversation {
  jinja::Value messages;   // a list of dicts
  jinja::Value tools;      // a list of dicts; none if there are no tools
  jinja::Value variables;  // a dict
  bool add_generation_prompt = true;
  bool continue_final_message = false;
  int64_t now = 0;
};

// Reads the JSON of mlcb_apply_chat_template; throws Error(MLCB_ERROR_ARGUMENT) naming the place.
// As transformers does, keys whose value is null are left out of messages, and reasoning has the
// name that templates read.
Conversation read_conversation(jinja::Heap& heap, const std::string& json,
                               const MessageStyle& style);

// Marks the end of the last message's content, so that it is found in the rendered text.
void mark_final_message(jinja::Heap& heap, Conversation* conversation);
// The text up to the mark.
std::string cut_at_mark(std::string text);

}  // namespace mlcb
