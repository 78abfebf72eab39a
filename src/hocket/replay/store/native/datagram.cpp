#include "datagram.h"

#include <algorithm>

namespace hocket {
namespace {

constexpr uint64_t kOdd = 0x9e3779b97f4a7c15ULL;

uint64_t word_at(const uint8_t* data) {
  uint64_t word;
  std::memcpy(&word, data, sizeof(word));
  return word;
}

uint64_t mixed(uint64_t x) {
  x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93ULL;
  x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93ULL;
  return x ^ (x >> 32);
}

// Four independent words at a time. A CRC from tables took 1 us for each packet, as long as a
// packet takes over memif.
uint64_t digest(const uint8_t* data, size_t bytes, uint64_t seed) {
  uint64_t lanes[4] = {seed ^ bytes, seed + kOdd, ~seed, seed ^ kOdd};
  for (; bytes >= 32; bytes -= 32, data += 32) {
    for (int i = 0; i < 4; ++i) lanes[i] = (lanes[i] ^ word_at(data + 8 * i)) * kOdd;
    // The upper bits must affect the lower ones, too, and multiplication only works upwards.
    for (uint64_t& lane : lanes) lane ^= lane >> 29;
  }
  for (; bytes >= 8; bytes -= 8, data += 8) lanes[0] = mixed(lanes[0] ^ word_at(data));
  uint64_t rest = 0;
  if (bytes) std::memcpy(&rest, data, bytes);
  return mixed(mixed(mixed(mixed(lanes[0] ^ rest) ^ lanes[1]) ^ lanes[2]) ^ lanes[3]);
}

bool is_fragment(PacketKind kind) {
  return kind == PacketKind::kRequest || kind == PacketKind::kProbe || kind == PacketKind::kReply;
}

bool is_consistent(const PacketHeader& header, size_t bytes) {
  if (header.kind < PacketKind::kRequest || header.kind > PacketKind::kUnknown) return false;
  if (!header.request || header.behind >= header.request) return false;
  if (!is_fragment(header.kind)) {
    return header.length == bytes && bytes % sizeof(Gap) == 0 && bytes <= kMostGaps * sizeof(Gap);
  }
  if (!header.length || !header.stride || header.fragment >= header.fragments) return false;
  if (header.fragments > 1 && header.stride < kLeastStride) return false;
  const uint64_t before = uint64_t{header.fragments - 1} * header.stride;
  if (before >= header.length || before + header.stride < header.length) return false;
  const bool last = header.fragment + 1 == header.fragments;
  return bytes == (last ? header.length - before : header.stride);
}

}  // namespace

uint32_t packet_check(const PacketHeader& header, const uint8_t* payload, size_t bytes) {
  const auto* head = reinterpret_cast<const uint8_t*>(&header);
  const uint64_t found = digest(payload, bytes, digest(head, sizeof(header), kOdd));
  return static_cast<uint32_t>(found >> 32) ^ static_cast<uint32_t>(found);
}

bool read_packet(const uint8_t* data, size_t size, Packet& packet) {
  PacketHeader& header = packet.header;
  if (size < sizeof(header) || size > kMostPacketBytes) return false;
  std::memcpy(&header, data, sizeof(header));
  if (header.magic != kPacketMagic || header.version != kPacketVersion) return false;
  packet.payload = data + sizeof(header);
  packet.bytes = size - sizeof(header);
  if (!is_consistent(header, packet.bytes)) return false;
  const uint32_t check = header.check;
  header.check = 0;
  return packet_check(header, packet.payload, packet.bytes) == check;
}

bool send_packet(PacketSink& sink, const Peer& to, PacketHeader header, const uint8_t* payload,
                 size_t bytes) {
  header.check = 0;
  header.check = packet_check(header, payload, bytes);
  return sink.send(to, header, payload, bytes);
}

std::vector<Gap> read_gaps(const Packet& packet) {
  std::vector<Gap> gaps(packet.bytes / sizeof(Gap));
  if (packet.bytes) std::memcpy(gaps.data(), packet.payload, packet.bytes);
  return gaps;
}

void Arriving::begin(const PacketHeader& first, uint32_t credit, uint32_t granted) {
  fragments_ = first.fragments;
  length_ = first.length;
  stride_ = first.stride;
  received_ = 0;
  credit_ = credit;
  granted_ = std::min(granted, fragments_);
  there_.assign((fragments_ + 63) / 64, 0);
}

bool Arriving::fits(const PacketHeader& header) const {
  return header.fragments == fragments_ && header.length == length_ && header.stride == stride_;
}

bool Arriving::add(const Packet& packet, Bytes& message) {
  const uint32_t fragment = packet.header.fragment;
  uint64_t& word = there_[fragment / 64];
  const uint64_t bit = uint64_t{1} << (fragment % 64);
  if (word & bit) return false;
  word |= bit;
  ++received_;
  std::memcpy(message.data() + uint64_t{fragment} * stride_, packet.payload, packet.bytes);
  return true;
}

bool Arriving::wants_more() {
  if (granted_ == fragments_ || granted_ > received_ + credit_ / 2) return false;
  granted_ = std::min(received_ + credit_, fragments_);
  return true;
}

std::vector<Gap> Arriving::gaps() const {
  std::vector<Gap> found;
  for (uint32_t i = 0; i < granted_; ++i) {
    if (there_[i / 64] >> (i % 64) & 1) continue;
    if (!found.empty() && found.back().first + found.back().count == i) {
      ++found.back().count;
    } else {
      if (found.size() == kMostGaps) break;
      found.push_back({i, 1});
    }
  }
  return found;
}

void Leaving::begin(uint32_t length, size_t packet_bytes, uint32_t credit) {
  const size_t most = packet_bytes - sizeof(PacketHeader);
  length_ = length;
  stride_ = static_cast<uint16_t>(std::min<size_t>(length, most));
  fragments_ = (length + stride_ - 1) / stride_;
  next_ = 0;
  credit_ = credit;
}

bool Leaving::send(PacketSink& sink, const Peer& to, const PacketHeader& like,
                   const Bytes& message) {
  for (; next_ < std::min(credit_, fragments_); ++next_) {
    if (!send_one(sink, to, like, message, next_)) return false;
  }
  return true;
}

bool Leaving::repeat(PacketSink& sink, const Peer& to, const PacketHeader& like,
                     const Bytes& message, const std::vector<Gap>& gaps) {
  uint32_t left = kMostRepeated;
  for (const Gap& gap : gaps) {
    const uint64_t end = std::min<uint64_t>(uint64_t{gap.first} + gap.count, next_);
    for (uint64_t i = gap.first; i < end && left; ++i, --left) {
      if (!send_one(sink, to, like, message, static_cast<uint32_t>(i))) return false;
    }
  }
  return true;
}

bool Leaving::send_one(PacketSink& sink, const Peer& to, PacketHeader header, const Bytes& message,
                       uint32_t fragment) const {
  header.stride = stride_;
  header.fragment = fragment;
  header.fragments = fragments_;
  header.length = length_;
  const uint64_t at = uint64_t{fragment} * stride_;
  return send_packet(sink, to, header, message.data() + at,
                     std::min<uint64_t>(stride_, length_ - at));
}

bool send_state(PacketSink& sink, const Peer& to, PacketHeader like, PacketKind kind,
                uint32_t credit, const std::vector<Gap>& gaps) {
  like.kind = kind;
  like.credit = credit;
  like.length = static_cast<uint32_t>(gaps.size() * sizeof(Gap));
  return send_packet(sink, to, like, reinterpret_cast<const uint8_t*>(gaps.data()), like.length);
}

}  // namespace hocket
