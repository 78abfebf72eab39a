// Unix sockets with a path.

#pragma once

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <optional>
#include <string>

namespace hocket {

constexpr size_t kMostPathBytes = sizeof(sockaddr_un::sun_path) - 1;

// The address for a path; none if the path is too long.
inline std::optional<sockaddr_un> unix_address(const std::string& path) {
  sockaddr_un at{};
  at.sun_family = AF_UNIX;
  if (path.size() > kMostPathBytes) return std::nullopt;
  std::memcpy(at.sun_path, path.c_str(), path.size());
  return at;
}

// Removes the file of a socket whose listener is gone, so that another can listen there. Returns
// false if somebody listens. A file that is no socket is left alone.
inline bool free_path(const sockaddr_un& at, int kind) {
  const int file = socket(AF_UNIX, kind | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  const bool failed = connect(file, reinterpret_cast<const sockaddr*>(&at), sizeof(at));
  const int error = failed ? errno : 0;
  close(file);
  struct stat about;
  if (error == ECONNREFUSED && !lstat(at.sun_path, &about) && S_ISSOCK(about.st_mode)) {
    unlink(at.sun_path);
  }
  return error && error != EAGAIN;  // EAGAIN means that the listener is busy
}

}  // namespace hocket
