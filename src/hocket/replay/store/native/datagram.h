// Messages (wire.h) in packets that may be lost, doubled, reordered or damaged on their way.
//
// A message is cut into fragments of `stride` bytes; the last may be shorter. A packet is a
// `PacketHeader` and one of these:
//
//   from a client    kRequest   a fragment of a request
//                    kProbe     the same, and asks the server what it has of the request
//                    kMore      grants more of a reply, and lists its missing fragments
//   from a server    kReply     a fragment of a reply
//                    kHave      grants more of a request, and lists its missing fragments
//                    kUnknown   says that it does not know this client, or not any more
//
// The receiver of a message grants credit, so that nobody sends more than its buffers hold.
// `credit` is the number of fragments that may be sent, counted from the first one, so that a
// packet that is doubled or overtaken does no harm. Only clients have timers: a server only answers
// packets.
//
// A client numbers its requests 1, 2, 3... A server carries each out once, and keeps the reply
// until the client no longer waits for it (`behind`). A repeated request gets the same reply again.

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
constexpr size_t kPacketBytes = 1458;      // fits a frame of 1,500 bytes with its headers
constexpr size_t kMostPacketBytes = 8900;  // fits a jumbo frame
constexpr size_t kLeastStride = 512;       // for a message with several fragments
constexpr uint32_t kFirstCredit = 32;      // fragments to send before the server has granted any
constexpr uint32_t kMostCredit = 256;      // most fragments under way at once, whatever is granted
constexpr size_t kMostGaps = 64;           // most gaps that one packet lists
constexpr uint32_t kMostRepeated = 256;    // most fragments sent in answer to one such list

enum class PacketKind : uint8_t { kRequest = 1, kProbe, kMore, kReply, kHave, kUnknown };

struct PacketHeader {
  uint32_t magic = kPacketMagic;
  uint8_t version = kPacketVersion;
  PacketKind kind = PacketKind::kRequest;
  uint16_t stride = 0;  // bytes of each fragment except the last
  uint64_t client = 0;
  uint64_t request = 0;
  uint32_t fragment = 0, fragments = 0;
  uint32_t length = 0;  // of the whole message
  uint32_t credit = 0;
  uint32_t check = 0;   // checksum of the packet, computed with 0 here
  uint16_t behind = 0;  // the client waits for no request before `request - behind`
  uint16_t reserved = 0;
};
static_assert(sizeof(PacketHeader) == 48);

// The checksum of a header whose `check` is 0, and its payload. UDP's own has only 16 bits, and the
// kernel's virtual devices leave it empty.
uint32_t packet_check(const PacketHeader& header, const uint8_t* payload, size_t bytes);

// A packet that was received. `payload` points into its bytes.
struct Packet {
  PacketHeader header;
  const uint8_t* payload = nullptr;
  size_t bytes = 0;
};

// Reads a packet. Returns false if the bytes are damaged, inconsistent or no packet at all.
bool read_packet(const uint8_t* data, size_t size, Packet& packet);

// Where a packet came from. Only the code that moves packets knows what it contains.
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

// Takes packets to send, perhaps several at a time.
class PacketSink {
 public:
  // Copies the bytes. Returns false if there is no room now, and the caller must try again later.
  virtual bool send(const Peer& to, const PacketHeader& header, const uint8_t* payload,
                    size_t bytes) = 0;

 protected:
  ~PacketSink() = default;
};

// Sends a packet with its checksum.
bool send_packet(PacketSink& sink, const Peer& to, PacketHeader header, const uint8_t* payload,
                 size_t bytes);

// Bytes that are not set to zero first. Memory is kept when they get fewer.
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

// `count` missing fragments, from `first` on.
struct Gap {
  uint32_t first, count;
};

// The gaps that a kMore or a kHave lists.
std::vector<Gap> read_gaps(const Packet& packet);

// A message that is arriving.
class Arriving {
 public:
  // To be called with the header of its first packet. At most `credit` fragments may be under way.
  // `granted` fragments were granted before.
  void begin(const PacketHeader& first, uint32_t credit, uint32_t granted);
  // True if a packet belongs to this message.
  bool fits(const PacketHeader& header) const;
  // Copies a fragment into `message`, which has room for it. False if it was there already.
  bool add(const Packet& packet, Bytes& message);
  bool is_whole() const { return received_ == fragments_; }
  // Grants more and returns true, if most of what was granted has arrived.
  bool wants_more();
  uint32_t granted() const { return granted_; }
  // The granted fragments that are missing, as many as can be listed.
  std::vector<Gap> gaps() const;

 private:
  uint32_t fragments_ = 0, length_ = 0, received_ = 0, credit_ = 0, granted_ = 0;
  uint16_t stride_ = 0;
  std::vector<uint64_t> there_;
};

// A message that is being sent.
class Leaving {
 public:
  void begin(uint32_t length, size_t packet_bytes, uint32_t credit);
  // Sends the packets that are granted and were not sent yet. `like` has the fields that all of
  // them share. False if the sink had no room for some.
  bool send(PacketSink& sink, const Peer& to, const PacketHeader& like, const Bytes& message);
  // Sends the fragments in `gaps` again, as far as they were sent before.
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

// Tells the sender of a message its credit and the gaps.
bool send_state(PacketSink& sink, const Peer& to, PacketHeader like, PacketKind kind,
                uint32_t credit, const std::vector<Gap>& gaps);

}  // namespace hocket
