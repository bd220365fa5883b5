// Adds the place to errors that do not know it.
#pragma once
#include <string>

#include "core/error.h"

namespace mlcb {

// Runs body(); an error about a JSON value, which cannot know where the value came from, gets
// `where` put in front.
template <typename Body>
auto in_file(const std::string& where, Body body) -> decltype(body()) {
  try {
    return body();
  } catch (const Error& error) {
    const std::string message = error.what();
    if (message.compare(0, 5, "JSON:") != 0) throw;
    throw Error(error.status(), where + ": " + message.substr(message.find_first_not_of(' ', 5)));
  }
}

}  // namespace mlcb
