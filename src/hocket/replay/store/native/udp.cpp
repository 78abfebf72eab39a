#include "udp.h"

#include <netdb.h>
#include <netinet/udp.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <stdexcept>

#include "spin.h"

// Kernels have these since 4.18 and 5.0, but older C libraries do not define them.
#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif
#ifndef UDP_GRO
#define UDP_GRO 104
#endif

namespace hocket {
namespace {

constexpr size_t kBatches = 64;          // messages in one system call
constexpr size_t kMostSegments = 64;     // the kernel's UDP_MAX_SEGMENTS before 6.x
constexpr size_t kMostDatagram = 65000;  // less than 64 KiB with its headers
constexpr size_t kOutBytes = 512 * 1024;
constexpr size_t kInMessages = 16;
constexpr size_t kInBytes = 65536;
constexpr auto kSendAgain = std::chrono::microseconds(100);

using Address = sockaddr_in6;  // the larger of the two families

socklen_t length_of(const Address& address) {
  return address.sin6_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
}

[[noreturn]] void fail(const UdpAddress& address, const std::string& why) {
  throw std::runtime_error("udp://" + address.host + ":" + std::to_string(address.port) + ": " +
                           why);
}

Address resolve(const UdpAddress& address, bool listens) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_DGRAM;
  hints.ai_flags = AI_NUMERICSERV | (listens ? AI_PASSIVE : 0);
  const std::string port = std::to_string(address.port);
  const char* host = address.host.empty() ? nullptr : address.host.c_str();
  if (const int error = getaddrinfo(host, port.c_str(), &hints, &found)) {
    fail(address, gai_strerror(error));
  }
  Address resolved{};
  std::memcpy(&resolved, found->ai_addr, std::min<size_t>(found->ai_addrlen, sizeof(resolved)));
  freeaddrinfo(found);
  return resolved;
}

bool set(int file, int level, int name, int value) {
  return setsockopt(file, level, name, &value, sizeof(value)) == 0;
}

// Makes the buffers as large as allowed. Only a privileged process may exceed the system's limit.
void set_buffers(int file, int bytes) {
  if (!set(file, SOL_SOCKET, SO_RCVBUFFORCE, bytes)) set(file, SOL_SOCKET, SO_RCVBUF, bytes);
  if (!set(file, SOL_SOCKET, SO_SNDBUFFORCE, bytes)) set(file, SOL_SOCKET, SO_SNDBUF, bytes);
}

// The control data of a message, with the size of its segments.
union Control {
  alignas(cmsghdr) char bytes[CMSG_SPACE(sizeof(int))];
};

void ask_for_segments(msghdr& message, Control& control, size_t segment) {
  message.msg_control = control.bytes;
  message.msg_controllen = CMSG_SPACE(sizeof(uint16_t));
  cmsghdr* about = CMSG_FIRSTHDR(&message);
  about->cmsg_level = IPPROTO_UDP;
  about->cmsg_type = UDP_SEGMENT;
  about->cmsg_len = CMSG_LEN(sizeof(uint16_t));
  const auto size = static_cast<uint16_t>(segment);
  std::memcpy(CMSG_DATA(about), &size, sizeof(size));
}

// The bytes of each packet in a message, or all bytes if it is a single packet.
size_t segment_of(msghdr& message, size_t size) {
  for (cmsghdr* about = CMSG_FIRSTHDR(&message); about; about = CMSG_NXTHDR(&message, about)) {
    if (about->cmsg_level != IPPROTO_UDP || about->cmsg_type != UDP_GRO) continue;
    int segment = 0;
    std::memcpy(&segment, CMSG_DATA(about), sizeof(segment));
    if (segment > 0) return static_cast<size_t>(segment);
  }
  return std::max<size_t>(size, 1);
}

DatagramLimits fitted(DatagramLimits limits, const UdpSocket& socket) {
  limits.credit = socket.credit(limits.packet_bytes, limits.credit);
  return limits;
}

bool is_for_later(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == ENOBUFS; }

}  // namespace

UdpSocket::UdpSocket(const UdpAddress& address, const UdpOptions& options, bool listens)
    : connected_(!listens), out_(kOutBytes), in_(kInMessages * kInBytes) {
  const Address at = resolve(address, listens);
  file_ = socket(at.sin6_family, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (file_ < 0) fail(address, std::strerror(errno));
  const auto* given = reinterpret_cast<const sockaddr*>(&at);
  if (listens ? bind(file_, given, length_of(at)) : connect(file_, given, length_of(at))) {
    const int error = errno;
    close(file_);
    fail(address, std::strerror(error));
  }
  set_buffers(file_, options.buffer_bytes);
  // Setting 0 (no segments) changes nothing, but fails if the kernel does not support segments.
  segments_ = options.offload && set(file_, IPPROTO_UDP, UDP_SEGMENT, 0);
  coalesces_ = options.offload && set(file_, IPPROTO_UDP, UDP_GRO, 1);
  batches_.reserve(kBatches);
}

UdpSocket::~UdpSocket() { close(file_); }

uint16_t UdpSocket::port() const {
  Address own{};
  socklen_t length = sizeof(own);
  getsockname(file_, reinterpret_cast<sockaddr*>(&own), &length);
  return ntohs(own.sin6_port);  // the port is at the same place in both families
}

uint32_t UdpSocket::credit(size_t packet_bytes, uint32_t most) const {
  int bytes = 0;
  socklen_t length = sizeof(bytes);
  getsockopt(file_, SOL_SOCKET, SO_RCVBUF, &bytes, &length);
  // The kernel counts the memory of a packet, which is up to twice its bytes and some more.
  const size_t fits = static_cast<size_t>(bytes) / (2 * packet_bytes + 768);
  return static_cast<uint32_t>(std::clamp<size_t>(fits, 4, most));
}

bool UdpSocket::put(const Peer& to, const PacketHeader& header, const uint8_t* payload,
                    size_t bytes) {
  const size_t size = sizeof(header) + bytes;
  if (!join(to, size)) {
    flush();
    if (!join(to, size)) return false;
  }
  std::memcpy(out_.data() + used_, &header, sizeof(header));
  if (bytes) std::memcpy(out_.data() + used_ + sizeof(header), payload, bytes);
  used_ += size;
  return true;
}

// Adds a packet to a batch. Returns false if there is no room.
bool UdpSocket::join(const Peer& to, size_t size) {
  if (used_ + size > out_.size()) return false;
  if (segments_ && !batches_.empty()) {
    Batch& last = batches_.back();
    if (!last.is_full && size <= last.segment && last.size + size <= kMostDatagram &&
        last.size + last.segment <= kMostSegments * last.segment &&
        !std::memcmp(&last.to, &to, sizeof(to))) {
      last.size += size;
      last.is_full = size < last.segment;
      return true;
    }
  }
  if (batches_.size() == kBatches) return false;
  batches_.push_back({to, used_, size, size, false});
  return true;
}

void UdpSocket::flush() {
  while (!batches_.empty()) {
    mmsghdr messages[kBatches] = {};
    iovec parts[kBatches];
    Control controls[kBatches];
    Address to[kBatches];
    for (size_t i = 0; i < batches_.size(); ++i) {
      const Batch& batch = batches_[i];
      parts[i] = {out_.data() + batch.at, batch.size};
      msghdr& message = messages[i].msg_hdr;
      message.msg_iov = &parts[i];
      message.msg_iovlen = 1;
      if (!connected_) {
        to[i] = batch.to.as<Address>();
        message.msg_name = &to[i];
        message.msg_namelen = length_of(to[i]);
      }
      if (batch.size > batch.segment) ask_for_segments(message, controls[i], batch.segment);
    }
    const int sent = sendmmsg(file_, messages, static_cast<unsigned>(batches_.size()), 0);
    if (sent > 0) {
      drop(static_cast<size_t>(sent));
    } else if (errno == EINTR) {
      continue;
    } else if (is_for_later(errno)) {
      return;
    } else {
      // The error is of the first batch. A device may refuse segments that the kernel offers. A
      // packet that cannot be sent (nobody there, no route) counts as lost.
      const Batch first = batches_.front();
      if (first.size > first.segment) {
        segments_ = errno != EIO && errno != EINVAL && segments_;
        send_singly(first);
      }
      drop(1);
    }
  }
}

void UdpSocket::send_singly(const Batch& batch) {
  const Address to = batch.to.as<Address>();
  const auto* name = connected_ ? nullptr : reinterpret_cast<const sockaddr*>(&to);
  const socklen_t length = connected_ ? 0 : length_of(to);
  for (size_t at = 0; at < batch.size; at += batch.segment) {
    const size_t size = std::min(batch.segment, batch.size - at);
    if (sendto(file_, out_.data() + batch.at + at, size, 0, name, length) < 0) continue;
  }
}

void UdpSocket::drop(size_t batches) {
  batches_.erase(batches_.begin(), batches_.begin() + static_cast<ptrdiff_t>(batches));
  if (batches_.empty()) used_ = 0;
}

size_t UdpSocket::take(const Take& take) {
  mmsghdr messages[kInMessages] = {};
  iovec parts[kInMessages];
  Control controls[kInMessages];
  Address from[kInMessages] = {};
  for (size_t i = 0; i < kInMessages; ++i) {
    parts[i] = {in_.data() + i * kInBytes, kInBytes};
    msghdr& message = messages[i].msg_hdr;
    message.msg_iov = &parts[i];
    message.msg_iovlen = 1;
    message.msg_name = connected_ ? nullptr : &from[i];
    message.msg_namelen = connected_ ? 0 : sizeof(from[i]);
    if (!coalesces_) continue;
    message.msg_control = controls[i].bytes;
    message.msg_controllen = sizeof(controls[i].bytes);
  }
  const int found = recvmmsg(file_, messages, kInMessages, MSG_DONTWAIT, nullptr);
  size_t packets = 0;
  for (int i = 0; i < found; ++i) {
    const size_t size = messages[i].msg_len;
    const size_t segment = segment_of(messages[i].msg_hdr, size);
    const Peer peer = Peer::of(from[i]);
    for (size_t at = 0; at < std::max<size_t>(size, 1); at += segment, ++packets) {
      take(peer, in_.data() + static_cast<size_t>(i) * kInBytes + at, std::min(segment, size - at));
    }
  }
  return packets;
}

UdpListener::UdpListener(Desk& desk, const UdpAddress& address, const UdpOptions& options,
                         const DatagramLimits& limits)
    : socket_(address, options, true), server_(desk, *this, fitted(limits, socket_)) {}

Clock::time_point UdpListener::due() const {
  const Clock::time_point soon = Clock::now() + kSendAgain;
  return socket_.has_all_sent() ? server_.due() : std::min(soon, server_.due());
}

size_t UdpListener::readable(Clock::time_point now, const std::function<void()>& after) {
  const size_t packets = socket_.take([&](const Peer& from, const uint8_t* data, size_t size) {
    server_.packet(from, data, size, now);
    after();
  });
  socket_.flush();
  return packets;
}

void UdpListener::retry(Clock::time_point now) {
  server_.retry(now);
  socket_.flush();
}

void UdpListener::tick(Clock::time_point now) {
  socket_.flush();
  server_.tick(now);
  socket_.flush();
}

void UdpLink::receive(Clock::time_point until, const Take& take) {
  const auto each = [&](const Peer&, const uint8_t* data, size_t size) { take(data, size); };
  const auto look = [&] { return socket_.take(each) > 0; };
  const auto most_spin = std::min<Clock::duration>(until - Clock::now(), spin_);
  const int64_t spin_ns = std::chrono::nanoseconds(most_spin).count();
  if (spin_ns > 0 ? spin(look, spin_ns) : look()) return;
  const auto left = until - Clock::now();
  if (left <= Clock::duration(0)) return;
  const auto most = std::min<Clock::duration>(left, std::chrono::seconds(1));
  const auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(most).count();
  const timespec time = {static_cast<time_t>(ns / 1000000000), static_cast<long>(ns % 1000000000)};
  pollfd about = {socket_.file(), POLLIN, 0};
  ppoll(&about, 1, &time, nullptr);
  socket_.take(each);
}

}  // namespace hocket
