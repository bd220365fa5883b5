#include "text/output_parser.h"

#include <algorithm>
#include <vector>

#include "core/error.h"
#include "core/json.h"
#include "text/json_scanner.h"
#include "text/tool_call.h"

namespace mlcb {
namespace {

constexpr char kSpace[] = " \t\r\n";

size_t count_space(std::string_view text) {
  return std::min(text.find_first_not_of(kSpace), text.size());
}

bool starts_with(std::string_view text, std::string_view part) {
  return text.substr(0, part.size()) == part;
}

// Whether text is a beginning of part, and not all of it.
bool begins(std::string_view text, std::string_view part) {
  return text.size() < part.size() && part.substr(0, text.size()) == text;
}

// The number of bytes at the end of text that could begin part.
size_t held_for(std::string_view text, std::string_view part) {
  for (size_t size = std::min(text.size(), part.size() - 1); size > 0; --size) {
    if (text.substr(text.size() - size) == part.substr(0, size)) return size;
  }
  return 0;
}

class Deltas {
 public:
  void add_text(const char* key, std::string_view text) {
    if (text.empty()) return;
    if (key != key_) flush();
    key_ = key;
    text_ += text;
  }

  void add_call(const ToolCall& call) {
    flush();
    separate();
    out_ += "{\"tool_call\":{\"index\":" + std::to_string(calls_++) +
            ",\"name\":" + json_quote(call.name) + ",\"arguments\":" + json_quote(call.arguments) +
            "}}";
  }

  std::string take() {
    flush();
    std::string result = "[" + out_ + "]";
    out_.clear();
    return result;
  }

 private:
  void separate() {
    if (!out_.empty()) out_ += ",";
  }

  void flush() {
    if (text_.empty()) return;
    separate();
    out_ += "{" + json_quote(key_) + ":" + json_quote(text_) + "}";
    text_.clear();
  }

  std::string out_;
  const char* key_ = "";
  std::string text_;
  int calls_ = 0;
};

// ---- tool calls of one convention ---------------------------------------------------------------

enum class Match : uint8_t {
  kNone,  // no call begins here
  kMore,  // it could be one: wait for more text
  kCall,
};

// Recognizes calls at the beginning of a text.
class CallReader {
 public:
  virtual ~CallReader() = default;
  // What a call in the middle of an answer begins with.
  virtual std::string_view marker() const = 0;
  // Whether the answer itself may begin with a call that has no marker.
  virtual bool bare() const { return false; }
  // text begins with the marker, or (bare) is the answer's beginning, or follows a call (then a
  // separator may come first). *size: how much of text the calls take.
  virtual Match read(std::string_view text, bool last, std::vector<ToolCall>* calls,
                     size_t* size) = 0;
  // Forgets what it has read of a text.
  virtual void reset() = 0;
};

// <tool_call>{"name": ..., "arguments": {...}}</tool_call>
class HermesReader : public CallReader {
 public:
  std::string_view marker() const override { return kOpen; }

  Match read(std::string_view text, bool last, std::vector<ToolCall>* calls,
             size_t* size) override {
    if (!starts_with(text, kOpen))
      return begins(text, kOpen) && !last ? Match::kMore : Match::kNone;
    const std::string_view inside = text.substr(kOpen.size());
    const size_t start = count_space(inside);
    if (start == inside.size()) return last ? Match::kNone : Match::kMore;
    const std::string_view json = inside.substr(start);
    if (json[0] != '{') return Match::kNone;
    if (end_ == 0) end_ = scanner_.scan(json);
    if (end_ == 0) return last ? Match::kNone : Match::kMore;
    const std::string_view behind = json.substr(end_);
    const size_t space = count_space(behind);
    const std::string_view close = behind.substr(space);
    if (!starts_with(close, kClose)) {
      if (begins(close, kClose) && !last) return Match::kMore;
      // At the end of the text, or where the next call begins, the close may be missing.
      if (!close.empty() && !starts_with(close, kOpen)) return Match::kNone;
    }
    ToolCall call;
    if (!read_tool_call(json.substr(0, end_), &call)) return Match::kNone;
    calls->push_back(std::move(call));
    *size = text.size() - close.size() + (starts_with(close, kClose) ? kClose.size() : 0);
    return Match::kCall;
  }

  void reset() override {
    scanner_ = JsonScanner();
    end_ = 0;
  }

 private:
  static constexpr std::string_view kOpen = "<tool_call>", kClose = "</tool_call>";
  JsonScanner scanner_;
  size_t end_ = 0;
};

// {"name": ..., "parameters": {...}}, perhaps behind <|python_tag|>; several with ";" between them.
class Llama3Reader : public CallReader {
 public:
  std::string_view marker() const override { return kTag; }
  bool bare() const override { return true; }

  Match read(std::string_view text, bool last, std::vector<ToolCall>* calls,
             size_t* size) override {
    size_t at = 0;
    if (starts_with(text, ";")) at = 1 + count_space(text.substr(1));
    std::string_view rest = text.substr(at);
    if (starts_with(rest, kTag)) {
      at += kTag.size() + count_space(rest.substr(kTag.size()));
      rest = text.substr(at);
    } else if (begins(rest, kTag)) {
      return last ? Match::kNone : Match::kMore;
    }
    if (rest.empty()) return last ? Match::kNone : Match::kMore;
    if (rest[0] != '{' || !may_be_tool_call(rest)) return Match::kNone;
    const size_t end = scanner_.scan(rest);
    if (end == 0) return last ? Match::kNone : Match::kMore;
    ToolCall call;
    if (!read_tool_call(rest.substr(0, end), &call)) return Match::kNone;
    calls->push_back(std::move(call));
    *size = at + end;
    return Match::kCall;
  }

  void reset() override { scanner_ = JsonScanner(); }

 private:
  static constexpr std::string_view kTag = "<|python_tag|>";
  JsonScanner scanner_;
};

// [TOOL_CALLS] [{"name": ..., "arguments": {...}}, ...] and [TOOL_CALLS]name[ARGS]{...}, the latter
// perhaps with [CALL_ID] and an id between them.
class MistralReader : public CallReader {
 public:
  std::string_view marker() const override { return kMarker; }

  Match read(std::string_view text, bool last, std::vector<ToolCall>* calls,
             size_t* size) override {
    const Match more = last ? Match::kNone : Match::kMore;
    if (!starts_with(text, kMarker)) return begins(text, kMarker) ? more : Match::kNone;
    size_t at = kMarker.size();
    at += count_space(text.substr(at));
    std::string_view rest = text.substr(at);
    if (rest.empty()) return more;
    if (rest[0] == '[' || rest[0] == '{') {
      if (end_ == 0) end_ = scanner_.scan(rest);
      if (end_ == 0) return more;
      if (!read_tool_calls(rest.substr(0, end_), calls)) return Match::kNone;
      *size = at + end_;
      return Match::kCall;
    }
    const size_t arguments = rest.find(kArguments);
    if (arguments == std::string_view::npos) {
      return rest.size() > kMaxName || rest.find('\n') != std::string_view::npos ? Match::kNone
                                                                                 : more;
    }
    ToolCall call;
    call.name = rest.substr(0, std::min(arguments, rest.find(kCallId)));
    at += arguments + kArguments.size();
    at += count_space(text.substr(at));
    rest = text.substr(at);
    if (rest.empty()) return more;
    if (rest[0] != '{' || call.name.empty()) return Match::kNone;
    if (end_ == 0) end_ = scanner_.scan(rest);
    if (end_ == 0) return more;
    call.arguments = rest.substr(0, end_);
    if (!is_json_object(call.arguments)) return Match::kNone;
    calls->push_back(std::move(call));
    *size = at + end_;
    return Match::kCall;
  }

  void reset() override {
    scanner_ = JsonScanner();
    end_ = 0;
  }

 private:
  static constexpr std::string_view kMarker = "[TOOL_CALLS]", kArguments = "[ARGS]",
                                    kCallId = "[CALL_ID]";
  static constexpr size_t kMaxName = 256;
  JsonScanner scanner_;
  size_t end_ = 0;
};

std::unique_ptr<CallReader> make_reader(const std::string& format) {
  if (format.empty()) return nullptr;
  if (format == "hermes") return std::make_unique<HermesReader>();
  if (format == "llama3") return std::make_unique<Llama3Reader>();
  if (format == "mistral" || format == "mistral_args") return std::make_unique<MistralReader>();
  throw Error(MLCB_ERROR_UNSUPPORTED, "tool calls in the format " + json_quote(format) +
                                          " are not known (hermes, llama3, mistral, mistral_args "
                                          "are)");
}

// ---- reasoning ----------------------------------------------------------------------------------

struct ReasoningMarkers {
  std::string_view open, close;  // both empty: none
  bool begins_open = false;      // the prompt ends inside of the reasoning
};

ReasoningMarkers find_markers(const std::string& format) {
  if (format.empty()) return {};
  if (format == "think_tags") return {"<think>", "</think>", false};
  if (format == "think_tags_open") return {"<think>", "</think>", true};
  if (format == "think_brackets") return {"[THINK]", "[/THINK]", false};
  throw Error(MLCB_ERROR_UNSUPPORTED, "reasoning in the format " + json_quote(format) +
                                          " is not known (think_tags, think_tags_open, "
                                          "think_brackets are)");
}

// ---- the parser ---------------------------------------------------------------------------------

class MarkedOutputParser : public OutputParser {
 public:
  MarkedOutputParser(std::unique_ptr<CallReader> calls, const ReasoningMarkers& markers)
      : calls_(std::move(calls)), markers_(markers) {
    if (markers_.begins_open) open_reasoning();
  }

  void read_prompt(std::string_view prompt) override {
    if (markers_.open.empty()) return;
    const size_t open = prompt.rfind(markers_.open);
    const size_t close = prompt.rfind(markers_.close);
    // Only what the prompt ends with counts: earlier turns have reasoning of their own.
    const bool ends_open =
        open != std::string_view::npos && count_space(prompt.substr(open + markers_.open.size())) ==
                                              prompt.size() - open - markers_.open.size();
    const bool ends_closed = close != std::string_view::npos &&
                             count_space(prompt.substr(close + markers_.close.size())) ==
                                 prompt.size() - close - markers_.close.size();
    if (ends_open) {
      open_reasoning();
    } else if (ends_closed || state_ == State::kReasoning) {
      state_ = State::kContent;
      drop_space_ = false;
    }
  }

  std::string push(std::string_view text, bool last) override {
    pending_ += text;
    while (step(last)) {
    }
    return deltas_.take();
  }

 private:
  enum class State : uint8_t { kReasoning, kContent, kBehindCall };

  void open_reasoning() {
    state_ = State::kReasoning;
    drop_space_ = true;
    reasoning_began_ = false;
  }

  void give(const char* key, size_t size) {
    deltas_.add_text(key, std::string_view(pending_).substr(0, size));
    pending_.erase(0, size);
  }

  // Takes something off the pending text; false if there is nothing to do before more text comes.
  bool step(bool last) {
    if (drop_space_) {
      const size_t space = count_space(pending_);
      if (space == pending_.size() && !last) return false;
      pending_.erase(0, space);
      drop_space_ = false;
      return true;
    }
    if (pending_.empty()) return false;
    if (state_ == State::kReasoning) return step_reasoning(last);
    if (state_ == State::kBehindCall) return step_behind_call(last);
    return step_content(last);
  }

  bool step_reasoning(bool last) {
    const std::string_view text = pending_;
    if (!reasoning_began_) {  // a model may open what the prompt has opened already
      if (begins(text, markers_.open) && !last) return false;
      reasoning_began_ = true;
      if (starts_with(text, markers_.open)) {
        pending_.erase(0, markers_.open.size());
        drop_space_ = true;
        return true;
      }
    }
    const size_t close = text.find(markers_.close);
    if (close != std::string_view::npos) {
      const size_t kept = text.find_last_not_of(kSpace, close == 0 ? 0 : close - 1);
      const bool any = close > 0 && kept != std::string_view::npos;
      deltas_.add_text("reasoning_content", text.substr(0, any ? kept + 1 : 0));
      pending_.erase(0, close + markers_.close.size());
      state_ = State::kContent;
      drop_space_ = true;
      return true;
    }
    if (last) {
      give("reasoning_content", text.size());
      return false;
    }
    // The marker's beginning, and white space that may stand in front of it.
    size_t size = text.size() - held_for(text, markers_.close);
    const size_t kept =
        size == 0 ? std::string_view::npos : text.find_last_not_of(kSpace, size - 1);
    size = kept == std::string_view::npos ? 0 : kept + 1;
    give("reasoning_content", size);
    return false;
  }

  bool step_content(bool last) {
    const std::string_view text = pending_;
    const bool at_start = !answered_;
    if (at_start && !markers_.open.empty()) {
      const std::string_view rest = text.substr(count_space(text));
      if (starts_with(rest, markers_.open)) {
        pending_.erase(0, text.size() - rest.size() + markers_.open.size());
        open_reasoning();
        reasoning_began_ = true;
        return true;
      }
      if (begins(rest, markers_.open) && !last) return false;
    }
    if (calls_ != nullptr && at_start && calls_->bare()) {
      const size_t space = count_space(text);
      const Match match = try_calls(text.substr(space), space, last);
      if (match == Match::kMore) return false;
      if (match == Match::kCall) return true;
    }
    if (calls_ == nullptr) {
      answered_ = true;
      give("content", text.size());
      return false;
    }
    const size_t found = text.find(calls_->marker(), tried_ ? 1 : 0);
    if (found == std::string_view::npos) {
      answered_ = true;
      const size_t held = last ? 0 : held_for(text, calls_->marker());
      tried_ = tried_ && held == text.size();
      give("content", text.size() - held);
      return false;
    }
    if (found > 0) {
      answered_ = true;
      tried_ = false;
      give("content", found);
      return true;
    }
    const Match match = try_calls(text, 0, last);
    if (match == Match::kMore) return false;
    if (match == Match::kCall) return true;
    answered_ = true;
    tried_ = true;  // no call begins with this marker
    return true;
  }

  // Behind a call: another one may follow; white space in front of it, or at the end, is no
  // content.
  bool step_behind_call(bool last) {
    const std::string_view text = pending_;
    const size_t space = count_space(text);
    if (space == text.size()) {
      if (last) pending_.clear();
      return false;
    }
    const Match match = try_calls(text.substr(space), space, last);
    if (match == Match::kMore) return false;
    if (match == Match::kCall) return true;
    state_ = State::kContent;
    tried_ = starts_with(text, calls_->marker());
    return true;
  }

  Match try_calls(std::string_view text, size_t before, bool last) {
    std::vector<ToolCall> calls;
    size_t size = 0;
    const Match match = calls_->read(text, last, &calls, &size);
    if (match == Match::kMore) return match;
    calls_->reset();
    if (match == Match::kNone) return match;
    for (const ToolCall& call : calls) deltas_.add_call(call);
    pending_.erase(0, before + size);
    state_ = State::kBehindCall;
    answered_ = true;
    return match;
  }

  std::unique_ptr<CallReader> calls_;
  ReasoningMarkers markers_;
  Deltas deltas_;
  State state_ = State::kContent;
  std::string pending_;           // what no delta has told yet
  bool drop_space_ = false;       // white space comes next that belongs to a marker
  bool reasoning_began_ = false;  // something of the reasoning was read
  bool answered_ = false;         // content or a call was read
  bool tried_ = false;            // pending_ begins with a marker of calls that begins none
};

}  // namespace

std::unique_ptr<OutputParser> OutputParser::create(const std::string& tool_format,
                                                   const std::string& reasoning_format) {
  return std::make_unique<MarkedOutputParser>(make_reader(tool_format),
                                              find_markers(reasoning_format));
}

}  // namespace mlcb
