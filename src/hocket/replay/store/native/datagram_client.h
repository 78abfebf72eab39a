// Clients that ask a server by packets. They repeat lost ones, and return whole replies.
//
//   DatagramClient   has no socket and no clock: its user gives it the packets for its `id`, and
//                    calls `tick` at the time `due`
//   DatagramChannel  joins a client and a `Link`, for a user that waits for replies:
//
//       UdpLink link("10.0.0.2", 7777);
//       DatagramSettings settings;
//       settings.name = "udp://10.0.0.2:7777";
//       DatagramChannel channel(link, settings);
//       channel.ask(header, body);
//       Reply reply;
//       while (!channel.receive(reply, Clock::now() + std::chrono::seconds(1))) {}
//
// Requests may overtake each other, and so may replies: `Header::request` tells them apart. If
// nothing is heard for `patience`, the reply is an error (Code::kClosed) with the server's name.

#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "datagram.h"
#include "desk.h"
#include "wire.h"

namespace hocket {

struct DatagramSettings {
  std::string name = "the replay server";  // in errors
  size_t packet_bytes = kPacketBytes;
  uint32_t credit = 64;  // most fragments of a reply under way to us
  uint64_t most_bytes = uint64_t{1} << 30;
  Clock::duration first_timeout = std::chrono::milliseconds(20);
  Clock::duration longest_timeout = std::chrono::milliseconds(500);
  Clock::duration patience = std::chrono::seconds(5);
};

struct Reply {
  Header header;
  Bytes message;  // with the header

  const uint8_t* body() const { return message.data() + sizeof(Header); }
  size_t length() const { return message.size() - sizeof(Header); }
  std::string text() const { return {reinterpret_cast<const char*>(body()), length()}; }
};

uint64_t random_client();

class DatagramClient {
 public:
  DatagramClient(PacketSink& sink, DatagramSettings settings, uint64_t id = random_client());

  // True if no more requests may be under way.
  bool is_full() const { return next_ - oldest() >= slots_.size(); }
  size_t under_way() const { return under_way_; }
  // Copies the body. Not to be called when the client is full.
  void ask(const Header& header, const uint8_t* body, Clock::time_point now);

  // Gives up the request with this `Header::request`. There will be no reply, and the server need
  // not keep one.
  void abandon(uint64_t request);
  // Gives up all requests under way. The server learns of it with the next request.
  void abandon_all();

  void packet(const uint8_t* data, size_t size, Clock::time_point now);
  void tick(Clock::time_point now);
  // The time at which to call `tick`, or `max` if nothing is under way.
  Clock::time_point due() const;
  // The next whole reply, if there is one.
  bool take(Reply& reply);

  // The number in packets for this client. It changes if the server forgets the client.
  uint64_t id() const { return id_; }
  uint64_t sent_again() const { return sent_again_; }

 private:
  struct Slot {
    uint64_t number = 0;  // 0: free
    Header header;
    Bytes request;
    Leaving leaving;
    bool arrives = false;  // the reply is arriving, in several packets
    Arriving arriving;
    Bytes reply;
    uint32_t times = 0;  // how often the request was sent
    Clock::duration timeout;
    Clock::time_point since, due;
  };

  uint64_t oldest() const;
  PacketHeader like(const Slot& slot) const;
  void send(Slot& slot, Clock::time_point now);
  void progress(Slot& slot, Clock::time_point now);
  void reply(Slot& slot, const Packet& packet, Clock::time_point now);
  void finish(Slot& slot);
  void fail(Slot& slot, const std::string& why);
  void ask_again(Slot& slot, Clock::time_point now);
  void start_afresh(Clock::time_point now);

  PacketSink& sink_;
  DatagramSettings settings_;
  uint64_t id_, next_ = 1, sent_again_ = 0;
  size_t under_way_ = 0;
  Clock::time_point heard_{}, looked_{};
  std::vector<Slot> slots_;
  std::deque<Reply> done_;
  std::vector<Bytes> spare_;
};

// A connection to one server that carries packets.
class Link : public PacketSink {
 public:
  using Take = std::function<void(const uint8_t* data, size_t size)>;

  virtual ~Link() = default;
  // Sends the packets that `send` has kept back to send them together.
  virtual void flush() = 0;
  // Takes the packets that have come, and waits for the first until then.
  virtual void receive(Clock::time_point until, const Take& take) = 0;
};

class DatagramChannel {
 public:
  DatagramChannel(Link& link, DatagramSettings settings)
      : link_(link), client_(link, std::move(settings)) {}

  bool is_full() const { return client_.is_full(); }
  void ask(const Header& header, const uint8_t* body);
  void abandon(uint64_t request) {
    client_.abandon(request);
    link_.flush();
  }
  // Returns false if there is no reply by then.
  bool receive(Reply& reply, Clock::time_point until);
  const DatagramClient& client() const { return client_; }

 private:
  Link& link_;
  DatagramClient client_;
};

}  // namespace hocket
