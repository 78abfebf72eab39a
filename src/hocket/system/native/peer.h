// The connection to another replica that averages over TCP: frames of bytes, both ways.
//
// A frame is gathered from several places and scattered to several places, so nothing is copied in
// between. Nothing here waits: what the socket does not take or give now is moved by a later call.
#pragma once

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

namespace hocket {

// What a frame has: arrays of the replica that sends it, means, or nothing, as the last frame of a
// replica that needs no more means.
enum class Kind : uint32_t { kArrays, kMeans, kFarewell };

// The header of a frame, in the byte order of this machine: little-endian on all that we support.
struct Frame {
  uint32_t site;    // the number of the call site, the same in all replicas
  Kind kind;
  uint64_t turn;    // the number of the call at this site, from 1 on
  uint64_t digest;  // of the arrays of the call, so that replicas with other programs are found
  int64_t total;    // bytes of all arrays of the call
  int64_t nbytes;   // bytes that follow
};

using Pieces = std::vector<iovec>;

class Peer {
 public:
  Peer(int fd, int replica) : fd(fd), replica(replica) {
    const int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  }

  const int fd;
  const int replica;
  bool over = false;  // the other side has closed the connection, died, or sent what is not due
  bool has_left = false;  // it has said farewell, so the end of the connection is no failure

  // Append a frame to those that are to be sent. Its pieces stay as they are until it has been
  // sent, which takes one from `open`.
  void put(const Frame& frame, Pieces pieces, int* open) {
    Outgoing& last = queue_.emplace_back(Outgoing{frame, std::move(pieces), 0, open});
    // A deque does not move its elements, so the header has an address.
    last.pieces.insert(last.pieces.begin(), {&last.frame, sizeof(Frame)});
  }

  bool has_more() const { return !queue_.empty(); }

  // Send as much as the socket takes. Return the number of bytes.
  int64_t send() {
    int64_t total = 0;
    while (!queue_.empty() && !over) {
      Outgoing& next = queue_.front();
      msghdr message = message_of(next.pieces, next.at);
      const ssize_t n = sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
      if (n < 0) {
        over = over || !would_block();
        break;
      }
      total += n;
      if (!advance(next.pieces, next.at, n)) continue;
      --*next.open;
      queue_.pop_front();
    }
    return total;
  }

  // Receive what has arrived, up to about `most` bytes, and return their number. `place(frame,
  // pieces)` says where the bytes of a frame belong, and is false if the frame is not due;
  // `arrived(frame)` is called when they are there.
  template <class Place, class Arrived>
  int64_t receive(const Place& place, const Arrived& arrived, int64_t most) {
    int64_t total = 0;
    while (!over && total < most) {
      if (into_.empty()) into_ = {{&frame_, sizeof(Frame)}};
      msghdr message = message_of(into_, at_);
      const ssize_t n = recvmsg(fd, &message, MSG_DONTWAIT);
      if (n < 0 && would_block()) break;
      over = n <= 0;
      if (over) break;
      total += n;
      if (!advance(into_, at_, n)) continue;
      into_.clear();
      at_ = 0;
      if (is_body_) {
        is_body_ = false;
        arrived(frame_);
      } else if (!place(frame_, into_)) {
        over = true;
      } else if (frame_.nbytes == 0) {
        into_.clear();
        arrived(frame_);
      } else {
        is_body_ = true;
      }
    }
    return total;
  }

 private:
  struct Outgoing {
    Frame frame;
    Pieces pieces;
    size_t at;  // the first piece that is not yet sent as a whole
    int* open;
  };

  static bool would_block() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

  static msghdr message_of(Pieces& pieces, size_t at) {
    constexpr size_t kMostPieces = 256;  // the kernel takes up to 1024
    msghdr message{};
    message.msg_iov = pieces.data() + at;
    message.msg_iovlen = std::min(pieces.size() - at, kMostPieces);
    return message;
  }

  // Take `n` bytes from the front of the pieces. True if none is left.
  static bool advance(Pieces& pieces, size_t& at, size_t n) {
    for (; at < pieces.size() && n >= pieces[at].iov_len; ++at) n -= pieces[at].iov_len;
    if (at == pieces.size()) return true;
    pieces[at].iov_base = static_cast<char*>(pieces[at].iov_base) + n;
    pieces[at].iov_len -= n;
    return false;
  }

  std::deque<Outgoing> queue_;
  Frame frame_{};
  Pieces into_;  // where the next bytes go
  size_t at_ = 0;
  bool is_body_ = false;
};

}  // namespace hocket
