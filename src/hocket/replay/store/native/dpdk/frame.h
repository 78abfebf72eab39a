// Ethernet frames that carry replay packets over IPv4 and UDP, with ARP and ping.

#pragma once

#include <rte_ether.h>

#include <cstdint>
#include <string>

#include "../datagram.h"
#include "port.h"

namespace hocket {

// An address in network byte order, as in frames, and a port in the machine's.
struct Place {
  uint32_t address = 0;
  uint16_t port = 0;
};

// Reads `10.0.0.2:7777`, or `10.0.0.2` without a port. Throws std::invalid_argument with the name
// of the option.
Place parse_place(const std::string& option, const std::string& text, bool with_port);
std::string text_of(const Place& place);

// The sender of a packet, which a `Peer` holds here.
struct Station {
  Place place;
  rte_ether_addr mac;
  uint16_t port;  // the port by which the packet came in
};

// The meaning of a frame for the station that sees it.
enum class Seen {
  kPacket,   // UDP for its place
  kReply,    // a request by ARP or ping, which was turned into its answer and is to be sent back
  kFound,    // an ARP answer for it
  kForeign,  // a frame for another station
};

struct Look {
  Seen seen = Seen::kForeign;
  Station from{};
  const uint8_t* payload = nullptr;
  size_t bytes = 0;
};

// Classifies a frame that came in by `port`, for a station at `own`.
Look look_at(rte_mbuf* frame, const Place& own, const Port& port);

// Writes a packet with its headers into an empty frame. Returns false if it does not fit.
bool write_packet(rte_mbuf* frame, const Port& port, const Place& from, const Station& to,
                  const PacketHeader& header, const uint8_t* payload, size_t bytes);

// Writes an ARP request for an address.
void write_arp(rte_mbuf* frame, const Port& port, const Place& from, const Place& to);

// Writes an echo request of `bytes` in all, with a number to recognize its answer.
void write_ping(rte_mbuf* frame, const Port& port, const Place& from, const Station& to,
                size_t frame_bytes, uint16_t number);

}  // namespace hocket
