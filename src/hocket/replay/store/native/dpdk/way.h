// A client's way to a node: one port, packets to one address and back.

#pragma once

#include "../datagram_client.h"
#include "frame.h"
#include "idle.h"
#include "port.h"

namespace hocket {

class Way final : public Link {
 public:
  // `own` has the port that replies come to.
  Way(uint16_t port, const Place& own, const Place& node, Idle& idle);

  // No room until it is known where the node is, which is asked for meanwhile.
  bool send(const Peer& to, const PacketHeader& header, const uint8_t* payload,
            size_t bytes) override;
  void flush() override;
  // Polls, and sleeps now and then if that is what `idle` is told to do.
  void receive(Clock::time_point until, const Take& take) override;

  // What is there. Whether there was anything.
  bool poll(const Take& take);
  // Sends a ping of so many bytes, and polls for its answer until then. Whether it came.
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
