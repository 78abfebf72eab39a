#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "client.h"
#include "spin.h"
#include "unix_path.h"

namespace hocket {
namespace {

constexpr auto kPatience = std::chrono::seconds(30);  // for a server that reads nothing
constexpr int kLookMs = 20;  // how often to check if the thread that reads has stopped
constexpr uint64_t kMostText = uint64_t{1} << 20;

int milliseconds(Clock::time_point until) {
  const auto left =
      std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left + 1, 0, 60000));
}

Gone unreachable(const std::string& server, const std::string& why) {
  return Gone("no replay server answers at " + server + ": " + why);
}

void finish_connecting(int file, int result, const std::string& server, double seconds) {
  if (!result) return;
  if (errno != EINPROGRESS) throw unreachable(server, std::strerror(errno));
  pollfd ready{file, POLLOUT, 0};
  if (poll(&ready, 1, static_cast<int>(std::min(seconds * 1e3, 2e9))) <= 0) {
    throw unreachable(server, "not within " + text(seconds) + " s");
  }
  int error = 0;
  socklen_t bytes = sizeof(error);
  getsockopt(file, SOL_SOCKET, SO_ERROR, &error, &bytes);
  if (error) throw unreachable(server, std::strerror(error));
}

}  // namespace

StreamClient::StreamClient(int file, std::string server)
    : file_(file), server_(std::move(server)) {}

StreamClient::~StreamClient() { ::close(file_); }

void StreamClient::close() {
  const std::lock_guard<std::mutex> lock(mutex_);
  fail("this connection to the replay server at " + server_ + " was closed");
  shutdown(file_, SHUT_RDWR);
}

std::unique_ptr<StreamClient> StreamClient::tcp(const std::string& host, uint16_t port,
                                                double seconds) {
  const std::string server = "tcp://" + host + ":" + std::to_string(port);
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  if (const int error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found)) {
    throw unreachable(server, gai_strerror(error));
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> all(found, freeaddrinfo);
  for (const addrinfo* at = found;; at = at->ai_next) {
    const int file =
        socket(at->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, at->ai_protocol);
    if (file < 0) throw unreachable(server, std::strerror(errno));
    auto client = std::make_unique<StreamClient>(file, server);
    const int on = 1;
    setsockopt(file, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    setsockopt(file, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
    try {
      finish_connecting(file, connect(file, at->ai_addr, at->ai_addrlen), server, seconds);
      return client;
    } catch (const Gone&) {
      if (!at->ai_next) throw;
    }
  }
}

std::unique_ptr<StreamClient> StreamClient::unix_socket(const std::string& path) {
  const auto at = unix_address(path);
  if (!at) {
    throw unreachable(path, "a path of a socket has at most " + std::to_string(kMostPathBytes) +
                                " bytes");
  }
  const int file = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (file < 0) throw unreachable(path, std::strerror(errno));
  auto client = std::make_unique<StreamClient>(file, path);
  if (connect(file, reinterpret_cast<const sockaddr*>(&*at), sizeof(*at))) {
    throw unreachable(path, std::strerror(errno));
  }
  return client;
}

void StreamClient::begin(Call& call) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!broken_.empty()) throw Gone(broken_);
  call.header.request = next_request_++;
  calls_[call.header.request] = &call;
}

void StreamClient::ask(Call& call, const std::vector<In>& parts) {
  const std::lock_guard<std::mutex> alone(sending_);
  call.header.length = 0;
  for (const In& part : parts) call.header.length += part.bytes;
  begin(call);
  std::vector<In> whole{{&call.header, sizeof(Header)}};
  whole.insert(whole.end(), parts.begin(), parts.end());
  // A copy, because the reply may arrive before all is sent, and replaces the header of the call.
  const Header header = call.header;
  whole.front().data = &header;
  try {
    send_all(std::move(whole));
  } catch (const Gone& gone) {
    std::unique_lock<std::mutex> lock(mutex_);
    fail(gone.what());
    forget(lock, call);
    throw Gone(broken_);
  }
}

void StreamClient::ask_with(Call& call, const In& part, const std::vector<int>& files) {
  const std::lock_guard<std::mutex> alone(sending_);
  call.header.length = part.bytes;
  begin(call);
  Header header = call.header;
  iovec vectors[2] = {{&header, sizeof(header)}, {const_cast<void*>(part.data), part.bytes}};
  std::vector<char> control(CMSG_SPACE(files.size() * sizeof(int)));
  msghdr message{};
  message.msg_iov = vectors;
  message.msg_iovlen = 2;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* about = CMSG_FIRSTHDR(&message);
  about->cmsg_level = SOL_SOCKET;
  about->cmsg_type = SCM_RIGHTS;
  about->cmsg_len = CMSG_LEN(files.size() * sizeof(int));
  std::memcpy(CMSG_DATA(about), files.data(), files.size() * sizeof(int));
  // Only the greeting was sent over this socket before, so all of this fits into its buffer.
  if (sendmsg(file_, &message, MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof(header) + part.bytes)) {
    return;
  }
  const std::string why = std::strerror(errno);
  std::unique_lock<std::mutex> lock(mutex_);
  fail("the replay server at " + server_ + " is gone: " + why);
  forget(lock, call);
  throw Gone(broken_);
}

void StreamClient::send_all(std::vector<In> parts) {
  std::vector<iovec> vectors;
  for (const In& part : parts) {
    if (part.bytes) vectors.push_back({const_cast<void*>(part.data), part.bytes});
  }
  auto end = Clock::now() + kPatience;
  for (size_t first = 0; first < vectors.size();) {
    msghdr message{};
    message.msg_iov = vectors.data() + first;
    message.msg_iovlen = std::min<size_t>(vectors.size() - first, 64);
    ssize_t sent = sendmsg(file_, &message, MSG_NOSIGNAL);
    if (sent < 0 && errno != EAGAIN && errno != EINTR) {
      throw Gone("the replay server at " + server_ + " is gone: " + std::strerror(errno));
    }
    if (sent < 0) {
      if (Clock::now() > end) {
        throw Gone("the replay server at " + server_ + " reads nothing of what it is sent");
      }
      wait_to_send();
      continue;
    }
    end = Clock::now() + kPatience;
    for (; first < vectors.size() && static_cast<size_t>(sent) >= vectors[first].iov_len; ++first) {
      sent -= static_cast<ssize_t>(vectors[first].iov_len);
    }
    if (first < vectors.size()) {
      vectors[first].iov_base = static_cast<uint8_t*>(vectors[first].iov_base) + sent;
      vectors[first].iov_len -= static_cast<size_t>(sent);
    }
  }
}

// Waits until there may be room. A server with too many replies to send takes no requests, so we
// read replies meanwhile, unless another thread does.
void StreamClient::wait_to_send() {
  std::unique_lock<std::mutex> lock(mutex_);
  const bool reads = !is_reading_ && broken_.empty();
  is_reading_ |= reads;
  lock.unlock();
  pollfd ready{file_, static_cast<short>(reads ? POLLIN | POLLOUT : POLLOUT), 0};
  const bool found = poll(&ready, 1, kLookMs) > 0;
  std::string problem;
  try {
    if (reads && found && ready.revents & POLLIN) read_more(Clock::now());
  } catch (const Gone& gone) {
    problem = gone.what();
  }
  if (!reads) return;
  lock.lock();
  is_reading_ = false;
  if (!problem.empty()) fail(problem);
  changed_.notify_all();
  if (!broken_.empty()) throw Gone(broken_);
}

bool StreamClient::wait(Call& call, Clock::time_point until) {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!call.is_done) {
    if (!broken_.empty()) {
      forget(lock, call);
      throw Gone(broken_);
    }
    if (is_reading_) {
      if (changed_.wait_until(lock, until) == std::cv_status::timeout) return call.is_done;
      continue;
    }
    is_reading_ = true;
    lock.unlock();
    read_until(call, until);
    lock.lock();
    is_reading_ = false;
    changed_.notify_all();
    if (!call.is_done && broken_.empty() && Clock::now() >= until) return false;
  }
  return true;
}

void StreamClient::abandon(Call& call) {
  {
    std::unique_lock<std::mutex> lock(mutex_);
    const bool has_begun = call.is_filling || call.is_done || !broken_.empty();
    forget(lock, call);
    if (has_begun) return;
  }
  Header header;
  header.op = Op::kCancel;
  header.request = call.header.request;
  const std::lock_guard<std::mutex> alone(sending_);
  try {
    send_all({{&header, sizeof(header)}});
  } catch (const Gone& gone) {
    const std::lock_guard<std::mutex> lock(mutex_);
    fail(gone.what());
  }
}

// After this, no thread writes to the call or its arrays.
void StreamClient::forget(std::unique_lock<std::mutex>& lock, Call& call) {
  changed_.wait(lock, [&] { return !is_reading_ || !call.is_filling; });
  if (call.is_done) return;
  calls_.erase(call.header.request);
  if (!call.is_filling) return;
  // The rest of its reply is still to come, and will be thrown away.
  call.is_filling = false;
  into_ = nullptr;
  uint64_t left = 0;
  for (size_t k = next_; k < rest_.size(); ++k) left += rest_[k].bytes;
  rest_ = {{nullptr, left}};
  next_ = 0;
}

void StreamClient::check_alive() {
  uint8_t byte;
  const ssize_t found = recv(file_, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  if (found > 0 || (found < 0 && (errno == EAGAIN || errno == EINTR))) return;
  throw Gone("the replay server at " + server_ + " is gone");
}

// Reads until the call is answered or something goes wrong.
void StreamClient::read_until(const Call& call, Clock::time_point until) {
  try {
    while (!call.is_done) {
      if (!read_more(until)) return;
    }
  } catch (const Gone& gone) {
    const std::lock_guard<std::mutex> lock(mutex_);
    fail(gone.what());
  }
}

// Reads what is there, and returns false if nothing came until then.
bool StreamClient::read_more(Clock::time_point until) {
  iovec vectors[64];
  int count = 0;
  if (got_ < sizeof(Header)) {
    vectors[count++] = {reinterpret_cast<uint8_t*>(&incoming_) + got_, sizeof(Header) - got_};
  } else {
    for (size_t k = next_; k < rest_.size() && count < 64; ++k) {
      const Out& out = rest_[k];
      vectors[count++] = {out.data ? out.data : waste_,
                          out.data ? out.bytes : std::min<uint64_t>(out.bytes, sizeof(waste_))};
      if (vectors[count - 1].iov_len < out.bytes) break;
    }
  }
  ssize_t more = -1;
  const auto there = [&] {
    more = readv(file_, vectors, count);
    return more >= 0 || (errno != EAGAIN && errno != EINTR);
  };
  while (!spin(there)) {
    pollfd ready{file_, POLLIN, 0};
    if (poll(&ready, 1, milliseconds(until)) <= 0) return false;
  }
  if (more <= 0) {
    throw Gone("the replay server at " + server_ + " is gone" +
               (more < 0 ? std::string(": ") + std::strerror(errno) : ""));
  }
  if (got_ < sizeof(Header)) {
    got_ += static_cast<uint64_t>(more);
    if (got_ == sizeof(Header)) begin_reply();
  } else {
    for (auto left = static_cast<uint64_t>(more); left;) {
      Out& out = rest_[next_];
      const uint64_t part = std::min(left, out.bytes);
      if (out.data) out.data = static_cast<uint8_t*>(out.data) + part;
      out.bytes -= part;
      left -= part;
      if (!out.bytes) ++next_;
    }
    if (next_ == rest_.size()) end_reply();
  }
  return true;
}

// The header of a reply is here. Decides where the rest goes.
void StreamClient::begin_reply() {
  if (incoming_.magic != kWireMagic || incoming_.version != kWireVersion) {
    throw Gone("what answers at " + server_ + " is no replay server of this version");
  }
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = calls_.find(incoming_.request);
    into_ = found == calls_.end() ? nullptr : found->second;
    if (into_) into_->is_filling = true;
  }
  rest_.clear();
  next_ = 0;
  text_.clear();
  uint64_t planned = 0;
  if (into_ && incoming_.code == Code::kOk && !into_->outs.empty()) {
    for (size_t k = 0; k < into_->outs.size(); ++k) {
      const Out& out = into_->outs[k];
      const bool is_last = k + 1 == into_->outs.size();
      const uint64_t rest = is_last && out.bytes == incoming_.length - planned
                                ? 0
                                : aligned(out.bytes) - out.bytes;
      if (out.bytes) rest_.push_back(out);
      if (rest) rest_.push_back({nullptr, rest});
      planned += out.bytes + rest;
    }
    if (planned != incoming_.length) {
      throw Gone("a reply of the replay server at " + server_ + " has " +
                 std::to_string(incoming_.length) + " bytes, not " + std::to_string(planned));
    }
  } else if (into_ || incoming_.code == Code::kClosed) {
    if (incoming_.length > kMostText) throw Gone("a reply at " + server_ + " is too long");
    text_.resize(incoming_.length);
    if (incoming_.length) rest_.push_back({text_.data(), incoming_.length});
  } else if (incoming_.length) {  // nobody waits for this reply
    rest_.push_back({nullptr, incoming_.length});
  }
  if (rest_.empty()) end_reply();
}

void StreamClient::end_reply() {
  got_ = 0;
  if (incoming_.code == Code::kClosed) {
    throw Gone("the replay server at " + server_ + " ended the connection: " + text_);
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!into_) return;
  into_->header = incoming_;
  into_->text = std::move(text_);
  into_->is_filling = false;
  into_->is_done = true;
  calls_.erase(incoming_.request);
  into_ = nullptr;
  changed_.notify_all();
}

// To be called with the lock held.
void StreamClient::fail(const std::string& why) {
  if (broken_.empty()) broken_ = why;
  changed_.notify_all();
}

}  // namespace hocket
