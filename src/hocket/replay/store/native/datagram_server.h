// Answers requests that come in packets, through a desk. It has no socket and no thread.
//
// Whoever moves the packets gives them to `packet`, calls `tick` at the time that `due` says, and
// `retry` when a table changed (`Desk::take_changed`). Replies go to the sink.
//
// A client that is silent for `idle` is forgotten. If it comes back later it is told so, and takes
// a new number; an insert of which it cannot know whether it was carried out then fails.

#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "datagram.h"
#include "desk.h"

namespace hocket {

// Requests that a client may have under way, from the oldest that it waits for.
constexpr uint64_t kMostUnderWay = 16;

struct DatagramLimits {
  size_t packet_bytes = kPacketBytes;
  uint32_t credit = 64;  // fragments of a request on their way to here
  size_t clients = 256;
  uint64_t client_bytes = uint64_t{64} << 20;  // of requests that arrive and replies that are kept
  uint64_t all_bytes = uint64_t{512} << 20;
  Clock::duration idle = std::chrono::seconds(60);
};

class DatagramServer {
 public:
  DatagramServer(Desk& desk, PacketSink& sink, const DatagramLimits& limits = {});
  ~DatagramServer();

  // Bytes that came from a peer; what is no packet is dropped and counted.
  void packet(const Peer& from, const uint8_t* data, size_t size, Clock::time_point now);

  // Tries again what waits for a table's limits.
  void retry(Clock::time_point now);

  // What is left to do: packets for which there was no room, requests that wait, silent clients.
  void tick(Clock::time_point now);
  Clock::time_point due() const;

  // Who has other clients too counts them together: `Traffic::clients` is not touched here.
  size_t clients() const { return clients_.size() - ended_; }
  uint64_t bytes() const { return bytes_; }
  // The ticket of who waits longest; the highest if nobody does.
  uint64_t oldest();

 private:
  enum class State { kFree, kArriving, kWaiting, kAnswered };

  struct Slot {
    State state = State::kFree;
    uint64_t number = 0;
    uint32_t credit = 0;  // for the reply
    bool queued = false;  // some of it had no room in the sink
    Arriving arriving;
    Leaving leaving;
    Bytes request, reply;
    Pending pending;
  };

  struct Client {
    uint64_t id = 0, oldest = 1, bytes = 0;
    Peer peer;
    Clock::time_point heard;
    bool ended = false;
    Slot slots[kMostUnderWay];
  };

  struct Room;
  using Place = std::pair<uint64_t, uint64_t>;  // of a client and a request: either may be gone

  Client* known(const Peer& from, const Packet& packet, Clock::time_point now);
  Client* admit(uint64_t id);
  void forget(Client& client);
  void release(Client& client, Slot& slot);
  void shrink(Client& client, Bytes& bytes);
  bool hold(Client& client, Bytes& bytes, uint64_t size);
  void fragment(Client& client, Slot& slot, const Packet& packet);
  void more(Client& client, Slot& slot, const Packet& packet);
  void remind(Client& client, Slot& slot, const PacketHeader& header);
  bool answer(Client& client, Slot& slot, const uint8_t* message, size_t size);
  void send(Client& client, Slot& slot);
  void refuse(const Peer& to, const Packet& packet, Code code, const std::string& why);
  uint64_t most_message() const;
  Slot* find(const Place& place);

  Desk& desk_;
  PacketSink& sink_;
  DatagramLimits limits_;
  uint64_t bytes_ = 0;
  size_t ended_ = 0;  // of the clients
  std::unordered_map<uint64_t, std::unique_ptr<Client>> clients_;
  std::vector<Place> waiting_, sending_;
  Clock::time_point now_, retried_, swept_;
};

}  // namespace hocket
