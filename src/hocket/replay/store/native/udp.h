// Packets (datagram.h) over the kernel's UDP.
//
// A server adds a listener to its epoll loop, all in one thread:
//
//   UdpListener udp(desk, {"0.0.0.0", 7777});     // throws the reason; 0 is any port, see port()
//   epoll: udp.file() is readable  ->  udp.readable(now)
//          desk.take_changed()     ->  udp.retry(now)
//          at udp.due()            ->  udp.tick(now)
//
// `readable` takes a bounded number of packets and returns it, so that a loop that spins knows if
// there were any. A level-triggered epoll calls it again for the rest. None of these blocks.
//
// If the kernel supports it (UDP_SEGMENT, UDP_GRO), up to 64 packets cross it as one.

#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <chrono>
#include <string>
#include <vector>

#include "datagram_client.h"
#include "datagram_server.h"

namespace hocket {

struct UdpAddress {
  std::string host = "127.0.0.1";
  uint16_t port = 0;
};

struct UdpOptions {
  bool offload = true;  // segmentation in the kernel, if it supports that
  int buffer_bytes = 4 << 20;
  Clock::duration spin = std::chrono::microseconds(50);  // for a link, before it sleeps
};

// A socket that moves packets in batches.
class UdpSocket {
 public:
  using Take = std::function<void(const Peer& from, const uint8_t* data, size_t size)>;

  UdpSocket(const UdpAddress& address, const UdpOptions& options, bool listens);
  ~UdpSocket();
  UdpSocket(const UdpSocket&) = delete;
  UdpSocket& operator=(const UdpSocket&) = delete;

  int file() const { return file_; }
  uint16_t port() const;
  // Sends a packet later, with its batch. Returns false if the kernel has no room now.
  bool put(const Peer& to, const PacketHeader& header, const uint8_t* payload, size_t bytes);
  void flush();
  bool has_all_sent() const { return batches_.empty(); }
  // Takes the packets that are there, up to a batch, and returns how many.
  size_t take(const Take& take);
  // The most fragments that may be under way to us, so that the socket's buffer holds them.
  uint32_t credit(size_t packet_bytes, uint32_t most) const;

 private:
  // Packets of one size to one peer. The last may be smaller.
  struct Batch {
    Peer to;
    size_t at, size, segment;
    bool is_full;
  };

  bool join(const Peer& to, size_t size);
  void send_singly(const Batch& batch);
  void drop(size_t batches);

  int file_ = -1;
  bool connected_, segments_, coalesces_;
  std::vector<uint8_t> out_, in_;
  size_t used_ = 0;
  std::vector<Batch> batches_;
};

class UdpListener : PacketSink {
 public:
  UdpListener(Desk& desk, const UdpAddress& address, const UdpOptions& options = {},
              const DatagramLimits& limits = {});

  int file() const { return socket_.file(); }
  uint16_t port() const { return socket_.port(); }
  // Handles packets. `after` is called after each, so that requests that wait come before later
  // ones.
  size_t readable(Clock::time_point now, const std::function<void()>& after = [] {});
  void retry(Clock::time_point now);
  void tick(Clock::time_point now);
  Clock::time_point due() const;
  DatagramServer& server() { return server_; }

 private:
  bool send(const Peer& to, const PacketHeader& header, const uint8_t* payload,
            size_t bytes) override {
    return socket_.put(to, header, payload, bytes);
  }

  UdpSocket socket_;
  DatagramServer server_;
};

// A client's connection to a listener. It spins for a while before it sleeps.
class UdpLink : public Link {
 public:
  explicit UdpLink(const UdpAddress& address, const UdpOptions& options = {})
      : socket_(address, options, false), spin_(options.spin) {}

  bool send(const Peer& to, const PacketHeader& header, const uint8_t* payload,
            size_t bytes) override {
    return socket_.put(to, header, payload, bytes);
  }
  void flush() override { socket_.flush(); }
  void receive(Clock::time_point until, const Take& take) override;
  // The value for `DatagramSettings::credit`.
  uint32_t credit(size_t packet_bytes, uint32_t most = 64) const {
    return socket_.credit(packet_bytes, most);
  }

 private:
  UdpSocket socket_;
  Clock::duration spin_;
};

}  // namespace hocket
