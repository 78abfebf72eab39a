#include "local.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <stdexcept>

#include "../unix_path.h"

namespace hocket {
namespace {

bool is_for_later(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

}  // namespace

LocalStream::~LocalStream() { close(file_); }

// Reads until the request has `bytes`. Returns false if they are not there yet.
bool LocalStream::read(size_t bytes) {
  while (got_ < bytes) {
    const ssize_t found = recv(file_, in_.data() + got_, bytes - got_, MSG_DONTWAIT);
    if (found <= 0) {
      if (found == 0 || !is_for_later(errno)) over_ = true;
      return false;
    }
    got_ += static_cast<size_t>(found);
  }
  return true;
}

bool LocalStream::next(Header& header, const uint8_t*& body) {
  if (over_ || ending_) return false;
  if (given_) {
    got_ = 0;
    given_ = false;
  }
  if (in_.size() < sizeof(header)) in_.resize(sizeof(header));
  if (!read(sizeof(header))) return false;
  std::memcpy(&header, in_.data(), sizeof(header));
  if (header.magic != kWireMagic) {
    end("these bytes are no message of a replay client");
    return false;
  }
  if (header.length > most_bytes_) {
    end("a request of " + std::to_string(header.length) + " bytes is too large: at most " +
        std::to_string(most_bytes_));
    return false;
  }
  const size_t all = sizeof(header) + header.length;
  if (in_.size() < all) {
    Bytes larger;
    larger.resize(all);
    std::memcpy(larger.data(), in_.data(), got_);
    in_ = std::move(larger);
  }
  if (!read(all)) return false;
  given_ = true;
  body = in_.data() + sizeof(header);
  return true;
}

void LocalStream::reply(const Reply& reply) {
  // A goodbye ends the connection.
  if (reply.header.op == Op::kBye) ending_ = true;
  out_.insert(out_.end(), reply.message.data(), reply.message.data() + reply.message.size());
  write();
}

// Tells the client why its connection ends, and reads nothing more.
void LocalStream::end(const std::string& why) {
  Reply last;
  last.header.code = Code::kClosed;
  last.header.length = why.size();
  uint8_t* to = last.message.resize(sizeof(Header) + why.size());
  std::memcpy(to, &last.header, sizeof(Header));
  std::memcpy(to + sizeof(Header), why.data(), why.size());
  ending_ = true;
  reply(last);
}

void LocalStream::write() {
  while (sent_ < out_.size()) {
    const ssize_t sent =
        send(file_, out_.data() + sent_, out_.size() - sent_, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0) {
      if (!is_for_later(errno)) over_ = true;
      return;
    }
    sent_ += static_cast<size_t>(sent);
  }
  out_.clear();
  sent_ = 0;
}

LocalListener::LocalListener(const std::string& path) : path_(path) {
  const auto at = unix_address(path);
  if (!at) {
    throw std::runtime_error("a path of a socket has at most " + std::to_string(kMostPathBytes) +
                             " bytes, found `" + path + "`");
  }
  if (!free_path(*at, SOCK_STREAM)) {
    throw std::runtime_error(path + ": another program listens there");
  }
  file_ = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (file_ < 0) throw std::runtime_error(path + ": " + std::strerror(errno));
  if (bind(file_, reinterpret_cast<const sockaddr*>(&*at), sizeof(*at)) || listen(file_, 64)) {
    const int error = errno;
    close(file_);
    throw std::runtime_error(path + ": " + std::strerror(error));
  }
}

LocalListener::~LocalListener() {
  close(file_);
  unlink(path_.c_str());
}

int LocalListener::accept() {
  return accept4(file_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
}

}  // namespace hocket
