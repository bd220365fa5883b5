// From token bytes to text that may be shown: whole UTF-8 characters only, stop strings held back.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace mlcb {

class TextStream {
 public:
  explicit TextStream(std::vector<std::string> stop_strings);

  // Adds the bytes of a token; returns what has become final (perhaps nothing). Bytes that can
  // never become valid UTF-8 come out as U+FFFD. After a stop string was met, stopped() is true and
  // neither it nor anything behind it is returned.
  std::string push(std::string_view bytes);
  // The end: returns what was held back (an unfinished character becomes U+FFFD).
  std::string finish();
  bool stopped() const { return stopped_; }
  const std::string& met() const { return met_; }  // the stop string that was met

 private:
  void take_characters(bool at_end);
  std::string take_final(bool at_end);

  std::vector<std::string> stops_;
  std::string tail_;     // the beginning of a character
  std::string pending_;  // whole characters, perhaps the beginning of a stop string
  bool stopped_ = false;
  std::string met_;
};

}  // namespace mlcb
