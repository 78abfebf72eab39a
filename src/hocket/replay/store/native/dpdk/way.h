// A client's connection to a node: packets to one address and back, through one port.

#pragma once

#include "../datagram_client.h"
#include "frame.h"
#include "idle.h"
#include "port.h"

namespace hocket {

class Way final : public Link {
 public:
  // `own` has the UDP port that replies come to.
  Way(uint16_t port, const Place& own, const Place& node, Idle& idle);

  // Has no room before the node's MAC is known, which this asks for.
  bool send(const Peer& to, const PacketHeader& header, const uint8_t* payload,
            size_t bytes) override;
  void flush() override;
  // Polls, and sleeps now and then if `idle` says so.
  void receive(Clock::time_point until, const Take& take) override;

  // Takes the packets that are there. Returns false if there were none.
  bool poll(const Take& take);
  // Sends a ping of `frame_bytes`, and polls for its answer until then. Returns true if it came.
  bool ping(size_t frame_bytes, Clock::time_point until);
  size_t payload_bytes() const { return port_.payload_bytes(); }

 private:
  void look_for_node();

  Port port_;
  Place own_;
  Station node_;
  Idle& idle_;
  bool found_ = false, wanted_ = false, echoed_ = false;
  uint16_t pings_ = 0;
  Clock::time_point heard_{}, asked_{}, connected_ = Clock::now();
};

}  // namespace hocket
