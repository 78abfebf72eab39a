#include "way.h"

namespace hocket {
namespace {

constexpr auto kAskAgain = std::chrono::milliseconds(20);
// After such a silence we ask for the node's MAC again, since a restarted node may have another.
constexpr auto kSilent = std::chrono::milliseconds(200);

}  // namespace

Way::Way(uint16_t port, const Place& own, const Place& node, Idle& idle)
    : port_(port), own_(own), node_{node, {}, port}, idle_(idle) {}

bool Way::send(const Peer&, const PacketHeader& header, const uint8_t* payload, size_t bytes) {
  wanted_ = true;
  if (!found_) return false;
  rte_mbuf* frame = port_.room();
  if (!frame) return false;
  if (write_packet(frame, port_, own_, node_, header, payload, bytes) && port_.put(frame)) {
    return true;
  }
  rte_pktmbuf_free(frame);
  return false;
}

void Way::flush() {
  if (wanted_) look_for_node();
  port_.flush();
}

void Way::look_for_node() {
  wanted_ = false;
  const Clock::time_point now = Clock::now();
  if (now - asked_ < (found_ ? Clock::duration(kSilent) : Clock::duration(kAskAgain)) ||
      (found_ && now - heard_ < kSilent)) {
    return;
  }
  asked_ = now;
  if (now - connected_ > kSilent) {
    connected_ = now;
    port_.reconnect();
  }
  rte_mbuf* frame = port_.room();
  if (!frame) return;
  write_arp(frame, port_, own_, node_.place);
  port_.put_or_drop(frame);
}

bool Way::poll(const Take& take) {
  rte_mbuf* frames[Port::kBurst];
  const uint16_t found = port_.receive(frames);
  if (found) heard_ = Clock::now();
  for (uint16_t i = 0; i < found; ++i) {
    const Look look = look_at(frames[i], own_, port_);
    const bool of_node = look.from.place.address == node_.place.address;
    if (look.seen == Seen::kReply) {
      port_.put_or_drop(frames[i]);
      continue;
    }
    if (look.seen == Seen::kFound && of_node) {
      node_.mac = look.from.mac;
      found_ = echoed_ = true;
    }
    if (look.seen == Seen::kPacket && of_node) take(look.payload, look.bytes);
    rte_pktmbuf_free(frames[i]);
  }
  return found;
}

void Way::receive(Clock::time_point until, const Take& take) {
  for (;;) {
    const bool busy = poll(take);
    const Clock::time_point now = Clock::now();
    const bool tired = idle_.after(busy, now);
    if (busy || now >= until || stopping) return;
    if (tired) idle_.sleep();
  }
}

bool Way::ping(size_t frame_bytes, Clock::time_point until) {
  wanted_ = true;
  if (!found_) {
    flush();
    receive(until, [](const uint8_t*, size_t) {});
    return false;
  }
  rte_mbuf* frame = port_.room();
  if (!frame) return false;
  write_ping(frame, port_, own_, node_, frame_bytes, ++pings_);
  echoed_ = false;
  port_.put_or_drop(frame);
  port_.flush();
  while (!echoed_) {
    receive(until, [](const uint8_t*, size_t) {});
    if (Clock::now() >= until || stopping) break;
  }
  return echoed_;
}

}  // namespace hocket
