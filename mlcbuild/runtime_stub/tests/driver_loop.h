// How the test drivers talk: a command in JSON on each line of stdin, its answer on a line of
// stdout.
#pragma once
#include <cstdint>
#include <iostream>
#include <string>

#include "core/error.h"
#include "core/json.h"

namespace mlcb {

// Bytes that JSON cannot hold go in and out in hexadecimal digits.
inline std::string from_hex(const std::string& hex) {
  std::string bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes.push_back(static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

inline std::string quoted_hex(const std::string& bytes) {
  static const char kDigits[] = "0123456789abcdef";
  std::string hex = "\"";
  for (const char c : bytes) {
    hex.push_back(kDigits[static_cast<uint8_t>(c) >> 4]);
    hex.push_back(kDigits[static_cast<uint8_t>(c) & 15]);
  }
  return hex + "\"";
}

// driver.run(command) gives the answer's text; an Error is an answer too.
template <typename Driver>
int answer_commands(Driver* driver) {
  std::ios::sync_with_stdio(false);
  for (std::string line; std::getline(std::cin, line);) {
    std::string answer;
    try {
      answer = driver->run(Json::parse(line, "command"));
    } catch (const Error& error) {
      answer = "{\"error\":" + json_quote(error.what()) +
               ",\"status\":" + std::to_string(error.status()) + "}";
    }
    std::cout << answer << std::endl;
  }
  return 0;
}

}  // namespace mlcb
