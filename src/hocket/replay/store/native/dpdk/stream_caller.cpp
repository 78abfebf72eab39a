#include "stream_caller.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>

#include "../spin.h"

namespace hocket {
namespace {

[[noreturn]] void fail(const std::string& what) {
  throw std::runtime_error(what + ": " + std::strerror(errno));
}

}  // namespace

StreamCaller::StreamCaller(const std::string& host, uint16_t port, Clock::duration spin)
    : file_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)), spin_(spin) {
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(port);
  inet_pton(AF_INET, host.c_str(), &to.sin_addr);
  if (file_ < 0 || connect(file_, reinterpret_cast<sockaddr*>(&to), sizeof(to))) {
    fail("tcp://" + host + ":" + std::to_string(port));
  }
  const int on = 1;
  setsockopt(file_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

StreamCaller::~StreamCaller() { close(file_); }

void StreamCaller::call(const Header& header, const uint8_t* body, Reply& reply) {
  iovec parts[2] = {{const_cast<Header*>(&header), sizeof(header)},
                    {const_cast<uint8_t*>(body), header.length}};
  size_t left = sizeof(header) + header.length;
  while (left) {
    const ssize_t sent = writev(file_, parts, 2);
    if (sent < 0) fail("cannot send");
    left -= static_cast<size_t>(sent);
    size_t done = static_cast<size_t>(sent);
    for (iovec& part : parts) {
      const size_t of_this = std::min(done, part.iov_len);
      part.iov_base = static_cast<uint8_t*>(part.iov_base) + of_this;
      part.iov_len -= of_this;
      done -= of_this;
    }
  }
  read(reinterpret_cast<uint8_t*>(&reply.header), sizeof(Header));
  uint8_t* to = reply.message.resize(sizeof(Header) + reply.header.length);
  std::memcpy(to, &reply.header, sizeof(Header));
  read(to + sizeof(Header), reply.header.length);
}

void StreamCaller::read(uint8_t* to, size_t bytes) {
  while (bytes) {
    ssize_t found = -1;
    const auto look = [&] {
      found = recv(file_, to, bytes, MSG_DONTWAIT);
      return found >= 0 || errno != EAGAIN;
    };
    if (!spin_.count() || !spin(look, std::chrono::nanoseconds(spin_).count())) {
      found = recv(file_, to, bytes, 0);
    }
    if (found == 0) throw std::runtime_error("the server ended the connection");
    if (found < 0 && errno != EINTR) fail("cannot receive");
    if (found < 0) continue;
    to += found;
    bytes -= static_cast<size_t>(found);
  }
}

}  // namespace hocket
