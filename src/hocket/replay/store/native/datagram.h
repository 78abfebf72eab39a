// Messages (wire.h) in packets that may be lost, doubled, reordered or damaged on their way.
//
// A message is cut into fragments of `stride` bytes, of which the last may be shorter. Each packet
// is a `PacketHeader` and one of them:
//
//   from a client    kRequest   a fragment of a request
//                    kProbe     the same; the server is to say what it has of the request
//                    kMore      grants more of a reply, and lists what is missing of it
//   from a server    kReply     a fragment of a reply
//                    kHave      grants more of a request, and lists what is missing of it
//                    kUnknown   it does not know this client (any more)
//
// `credit` is how many fragments of the answer may be sent, counted from its first: a number that
// is doubled or overtaken on its way does no harm. Whoever receives grants it, so that nobody sends
// more than the other's buffers hold. Only clients have timers: a server answers packets.
//
// Requests of a client are numbered 1, 2, 3... A server carries each out once, and keeps the reply
// until the client no longer waits for it (`behind`); whoever asks again gets that reply again.

#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

namespace hocket {

constexpr uint32_t kPacketMagic = 0x47444b48;  // HKDG
constexpr uint8_t kPacketVersion = 1;
constexpr size_t kPacketBytes = 1458;      // a frame of 1,500 bytes with its Ethernet, IP and UDP
constexpr size_t kMostPacketBytes = 8900;  // in a jumbo frame
constexpr size_t kLeastStride = 512;       // of what has several fragments
constexpr uint32_t kFirstCredit = 32;      // fragments of a request before its server granted any
constexpr uint32_t kMostCredit = 256;      // fragments on their way at once, whatever is granted
constexpr size_t kMostGaps = 64;           // listed in one packet
constexpr uint32_t kMostRepeated = 256;    // fragments that one such list is answered with

enum class PacketKind : uint8_t { kRequest = 1, kProbe, kMore, kReply, kHave, kUnknown };

struct PacketHeader {
  uint32_t magic = kPacketMagic;
  uint8_t version = kPacketVersion;
  PacketKind kind = PacketKind::kRequest;
  uint16_t stride = 0;  // bytes of each fragment but the last
  uint64_t client = 0;
  uint64_t request = 0;
  uint32_t fragment = 0, fragments = 0;
  uint32_t length = 0;  // of the whole message
  uint32_t credit = 0;
  uint32_t check = 0;   // of the packet, with 0 here
  uint16_t behind = 0;  // the client waits for no request before this one minus `behind`
  uint16_t reserved = 0;
};
static_assert(sizeof(PacketHeader) == 48);

// Of a header whose `check` is 0, and its payload. UDP's own is of 16 bits, and in the kernel's
// virtual devices nobody fills it in.
uint32_t packet_check(const PacketHeader& header, const uint8_t* payload, size_t bytes);

// A packet as it came. `payload` points into it.
struct Packet {
  PacketHeader header;
  const uint8_t* payload = nullptr;
  size_t bytes = 0;
};

// Whether these bytes are a packet, undamaged and consistent in itself.
bool read_packet(const uint8_t* data, size_t size, Packet& packet);

// Where a packet came from. Only those who move packets know what is in it.
struct Peer {
  alignas(8) uint8_t bytes[32] = {};

  template <typename Address>
  static Peer of(const Address& address) {
    static_assert(sizeof(Address) <= sizeof(Peer::bytes));
    Peer peer;
    std::memcpy(peer.bytes, &address, sizeof(address));
    return peer;
  }
  template <typename Address>
  Address as() const {
    Address address;
    std::memcpy(&address, bytes, sizeof(address));
    return address;
  }
};

// Takes packets, perhaps to send several at a time.
class PacketSink {
 public:
  // Bytes are copied. False if there is no room now: then it is to be sent later.
  virtual bool send(const Peer& to, const PacketHeader& header, const uint8_t* payload,
                    size_t bytes) = 0;

 protected:
  ~PacketSink() = default;
};

// Sends it with its check.
bool send_packet(PacketSink& sink, const Peer& to, PacketHeader header, const uint8_t* payload,
                 size_t bytes);

// Bytes that are not cleared first. Room once taken is kept.
class Bytes {
 public:
  Bytes() = default;
  Bytes(Bytes&& other) noexcept { *this = std::move(other); }
  Bytes& operator=(Bytes&& other) noexcept {
    data_ = std::move(other.data_);
    size_ = std::exchange(other.size_, 0);
    room_ = std::exchange(other.room_, 0);
    return *this;
  }
  uint8_t* resize(size_t size) {
    if (size > room_) {
      data_.reset();
      data_.reset(new uint8_t[size]);
      room_ = size;
    }
    size_ = size;
    return data_.get();
  }
  void assign(const uint8_t* data, size_t size) {
    if (size) std::memcpy(resize(size), data, size);
    size_ = size;
  }
  void free() { *this = Bytes(); }
  uint8_t* data() { return data_.get(); }
  const uint8_t* data() const { return data_.get(); }
  size_t size() const { return size_; }
  size_t room() const { return room_; }

 private:
  std::unique_ptr<uint8_t[]> data_;
  size_t size_ = 0, room_ = 0;
};

// Fragments from `first` on.
struct Gap {
  uint32_t first, count;
};

// The gaps that a kMore or a kHave lists.
std::vector<Gap> read_gaps(const Packet& packet);

// A message that arrives.
class Arriving {
 public:
  // After the first packet of it. At most `credit` fragments are to be on their way, of which so
  // many were granted before.
  void begin(const PacketHeader& first, uint32_t credit, uint32_t granted);
  // Whether the packet is of the message that was begun.
  bool fits(const PacketHeader& header) const;
  // Into `message`, which has room for it. False if it was there already.
  bool add(const Packet& packet, Bytes& message);
  bool is_whole() const { return received_ == fragments_; }
  // Whether so much of what was granted is there that it is time to grant more, which then counts
  // as granted.
  bool wants_more();
  uint32_t granted() const { return granted_; }
  // What is not there of what was granted, as far as it can be listed.
  std::vector<Gap> gaps() const;

 private:
  uint32_t fragments_ = 0, length_ = 0, received_ = 0, credit_ = 0, granted_ = 0;
  uint16_t stride_ = 0;
  std::vector<uint64_t> there_;
};

// A message that is sent.
class Leaving {
 public:
  void begin(uint32_t length, size_t packet_bytes, uint32_t credit);
  // Packets that were granted and not sent yet. `like` has what is the same in all of them. False
  // if the sink had no room for some.
  bool send(PacketSink& sink, const Peer& to, const PacketHeader& like, const Bytes& message);
  // Sends these again, as far as they were sent before.
  bool repeat(PacketSink& sink, const Peer& to, const PacketHeader& like, const Bytes& message,
              const std::vector<Gap>& gaps);
  void grant(uint32_t credit) { credit_ = credit > credit_ ? credit : credit_; }
  uint32_t fragments() const { return fragments_; }
  uint32_t sent() const { return next_; }

 private:
  bool send_one(PacketSink& sink, const Peer& to, PacketHeader header, const Bytes& message,
                uint32_t fragment) const;

  uint32_t fragments_ = 0, length_ = 0, next_ = 0, credit_ = 0;
  uint16_t stride_ = 0;
};

// Says what is there of a message: more credit, and gaps.
bool send_state(PacketSink& sink, const Peer& to, PacketHeader like, PacketKind kind,
                uint32_t credit, const std::vector<Gap>& gaps);

}  // namespace hocket
