// Writes the text of an error into memory of the caller, cut to its room.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>

namespace hocket {

inline void say(char* message, int64_t room, const std::string& text) {
  std::strncpy(message, text.c_str(), room - 1);
  message[room - 1] = 0;
}

}  // namespace hocket
