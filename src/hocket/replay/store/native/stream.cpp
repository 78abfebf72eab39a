#include "stream.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace hocket {
namespace {

constexpr uint64_t kRead = uint64_t{64} << 10, kBacklog = uint64_t{64} << 20;
constexpr size_t kMostParked = 64, kMostFiles = 4;
constexpr int kTurns = 64;  // reads, before other clients have a turn

}  // namespace

Files::~Files() {
  for (const int file : files_) close(file);
}

void Files::add(int file) {
  if (files_.size() < kMostFiles) {
    files_.push_back(file);
  } else {
    close(file);
  }
}

int Files::take() {
  const int file = files_.front();
  files_.pop_front();
  return file;
}

// The room for a reply, at the end of the bytes to send.
class Stream::Room final : public Outbox {
 public:
  explicit Room(Queue& out) : out_(out) {}
  uint8_t* room(uint64_t bytes) override {
    bytes_ = bytes;
    return out_.room(bytes);
  }
  void send() { out_.add(bytes_); }

 private:
  Queue& out_;
  uint64_t bytes_ = 0;
};

Stream::Stream(Desk& desk, int file, Map map) : desk_(desk), file_(file), map_(std::move(map)) {}

Stream::~Stream() {
  for (const Parked& parked : parked_) desk_.forget(parked.header, parked.pending);
  close(file_);
}

bool Stream::is_full() const { return !ending_ && out_.size() >= kBacklog; }

bool Stream::readable() {
  for (int turn = 0; turn < kTurns && !is_full(); ++turn) {
    const uint64_t wanted = missing();
    const int64_t more = receive(in_.room(wanted), wanted);
    if (more < 0) return errno == EAGAIN || errno == EINTR;
    if (more == 0) return false;
    if (ending_) continue;  // we still read, so that the client can read why the connection ends
    in_.add(static_cast<uint64_t>(more));
    answer_all();
    if (!flush()) return false;
    if (static_cast<uint64_t>(more) < wanted) break;
  }
  return true;
}

bool Stream::writable() {
  if (!flush()) return false;
  answer_all();  // requests that came while there was too much to send
  return flush();
}

bool Stream::flush() {
  while (out_.size()) {
    const ssize_t sent = send(file_, out_.front(), out_.size(), MSG_NOSIGNAL);
    if (sent < 0) return errno == EAGAIN || errno == EINTR;
    out_.drop(static_cast<uint64_t>(sent));
  }
  out_.shrink();
  in_.shrink();
  if (ending_ && !is_shut_) {
    is_shut_ = true;
    shutdown(file_, SHUT_WR);
  }
  return true;
}

bool Stream::retry() {
  for (auto it = parked_.begin(); it != parked_.end() && out_.size() < kBacklog;) {
    Room room(out_);
    if (desk_.answer(it->header, it->body.data(), it->pending, room) == Outcome::kWait) {
      ++it;
    } else {
      room.send();
      it = parked_.erase(it);
    }
  }
  return writable();
}

int64_t Stream::receive(uint8_t* to, uint64_t bytes) {
  if (!map_) return recv(file_, to, bytes, 0);
  iovec part{to, bytes};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMostFiles)];
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  const ssize_t more = recvmsg(file_, &message, MSG_CMSG_CLOEXEC);
  if (more < 0) return more;
  for (cmsghdr* c = CMSG_FIRSTHDR(&message); c; c = CMSG_NXTHDR(&message, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int file;
      std::memcpy(&file, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
      files_.add(file);
    }
  }
  return more;
}

// How many bytes to make room for. For a large message at most twice what has arrived of it, since
// its length is only what the client says.
uint64_t Stream::missing() {
  if (in_.size() < sizeof(Header)) return kRead;
  Header header;
  std::memcpy(&header, in_.front(), sizeof(header));
  const uint64_t whole = sizeof(Header) + std::min(header.length, desk_.most_bytes());
  const uint64_t rest = whole > in_.size() ? whole - in_.size() : 0;
  return std::max(kRead, std::min(rest, in_.size()));
}

void Stream::answer_all() {
  while (!ending_ && !is_full()) {
    if (discard_) {
      const uint64_t gone = std::min(discard_, in_.size());
      in_.drop(gone);
      discard_ -= gone;
      if (discard_) return;
    }
    if (in_.size() < sizeof(Header)) return;
    Header header;
    std::memcpy(&header, in_.front(), sizeof(header));
    if (header.magic != kWireMagic) return turn_away("these are no messages of a replay client");
    if (header.length > desk_.most_bytes()) {
      Room room(out_);
      desk_.refuse(header, Code::kBad, desk_.too_long(header), room);
      room.send();
      in_.drop(sizeof(Header));
      discard_ = header.length;
      continue;
    }
    if (in_.size() < sizeof(Header) + header.length) return;
    answer(header, in_.front() + sizeof(Header));
    in_.drop(sizeof(Header) + header.length);
  }
}

void Stream::answer(const Header& header, const uint8_t* body) {
  Room room(out_);
  if (header.op == Op::kMap && map_) {
    Region region;
    std::string problem = "a region needs its sizes, and two files: its memory and a bell";
    if (header.length == sizeof(region) && files_.size() >= 2) {
      std::memcpy(&region, body, sizeof(region));
      const int memory = files_.take(), bell = files_.take();
      problem = map_(region, memory, bell);
    }
    desk_.say(header, problem, room, problem.empty() ? Code::kOk : Code::kBad);
    return room.send();
  }
  if (header.op == Op::kCancel) return cancel(header.request);
  Pending pending;
  switch (desk_.answer(header, body, pending, room)) {
    case Outcome::kReplied: return room.send();
    case Outcome::kEnd: room.send(); return end();
    case Outcome::kWait: park(header, body, std::move(pending));
  }
}

// Keeps a request that has to wait. If we stopped reading instead, the request that it waits for
// could not come over the same connection.
void Stream::park(const Header& header, const uint8_t* body, Pending pending) {
  uint64_t bytes = header.length;
  for (const Parked& parked : parked_) bytes += parked.body.size();
  if (parked_.size() < kMostParked && bytes <= desk_.most_bytes()) {
    parked_.push_back({header, {body, body + header.length}, std::move(pending)});
    return;
  }
  desk_.forget(header, pending);
  Room room(out_);
  desk_.refuse(header, Code::kBad,
               std::to_string(parked_.size()) + " requests of this connection wait already", room);
  room.send();
}

void Stream::cancel(uint64_t request) {
  const auto found = std::find_if(parked_.begin(), parked_.end(), [&](const Parked& parked) {
    return parked.header.request == request;
  });
  if (found == parked_.end()) return;
  desk_.forget(found->header, found->pending);
  parked_.erase(found);
}

void Stream::turn_away(const std::string& why) {
  Room room(out_);
  desk_.refuse({}, Code::kClosed, why, room);
  room.send();
  end();
}

void Stream::end() {
  ending_ = true;
  ending_since_ = Clock::now();
  for (const Parked& parked : parked_) desk_.forget(parked.header, parked.pending);
  parked_.clear();
}

}  // namespace hocket
