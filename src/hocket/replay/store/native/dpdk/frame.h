// Ethernet frames with replay packets in them: IPv4 and UDP, and what it takes to be found there.

#pragma once

#include <rte_ether.h>

#include <cstdint>
#include <string>

#include "../datagram.h"
#include "port.h"

namespace hocket {

// As in the frames: the address in network order, the port in the machine's.
struct Place {
  uint32_t address = 0;
  uint16_t port = 0;
};

// From `10.0.0.2:7777`, or from `10.0.0.2` where no port is wanted. Throws std::invalid_argument
// with the name of the option.
Place parse_place(const std::string& option, const std::string& text, bool with_port);
std::string text_of(const Place& place);

// Who sent a packet: what a `Peer` holds here.
struct Station {
  Place place;
  rte_ether_addr mac;
  uint16_t port;  // that it came in by
};

// What a frame is to a station.
enum class Seen {
  kPacket,   // UDP for its place
  kReply,    // it was made into the answer (to ARP, or a ping), to go back where it came from
  kFound,    // an ARP answer for it
  kForeign,  // for somebody else
};

struct Look {
  Seen seen = Seen::kForeign;
  Station from{};
  const uint8_t* payload = nullptr;
  size_t bytes = 0;
};

// `own` is the place, `port` where the frame came in.
Look look_at(rte_mbuf* frame, const Place& own, const Port& port);

// Writes a packet with its headers into an empty frame. False if it does not fit.
bool write_packet(rte_mbuf* frame, const Port& port, const Place& from, const Station& to,
                  const PacketHeader& header, const uint8_t* payload, size_t bytes);

// Asks who has an address.
void write_arp(rte_mbuf* frame, const Port& port, const Place& from, const Place& to);

// An echo request of so many bytes in all, with a number to know it by.
void write_ping(rte_mbuf* frame, const Port& port, const Place& from, const Station& to,
                size_t frame_bytes, uint16_t number);

}  // namespace hocket
