// A server that answers requests in packets, through a desk. It has no socket and no thread.
//
// Its user gives it packets, calls `tick` at the time `due`, and `retry` when a table has changed
// (`Desk::take_changed`). Replies go to the sink.
//
// A client that is silent for `idle` is forgotten. If it comes back it is told so, and takes a new
// number. An insert that may or may not have been carried out then fails.

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

// The most requests that a client may have under way, counted from the oldest that it waits for.
constexpr uint64_t kMostUnderWay = 16;

struct DatagramLimits {
  size_t packet_bytes = kPacketBytes;
  uint32_t credit = 64;  // most fragments of a request under way to us
  size_t clients = 256;
  uint64_t client_bytes = uint64_t{64} << 20;  // for arriving requests and kept replies
  uint64_t all_bytes = uint64_t{512} << 20;
  Clock::duration idle = std::chrono::seconds(60);
};

class DatagramServer {
 public:
  DatagramServer(Desk& desk, PacketSink& sink, const DatagramLimits& limits = {});
  ~DatagramServer();

  // Handles bytes from a peer. If they are no packet, they are dropped and counted.
  void packet(const Peer& from, const uint8_t* data, size_t size, Clock::time_point now);

  // Tries again the requests that wait for a table's rate limits.
  void retry(Clock::time_point now);

  // Sends packets for which there was no room, retries requests, and forgets silent clients.
  void tick(Clock::time_point now);
  Clock::time_point due() const;

  // The owner adds up its clients of all kinds, so `Traffic::clients` is not changed here.
  size_t clients() const { return clients_.size() - ended_; }
  uint64_t bytes() const { return bytes_; }
  // The ticket of the request that has waited longest; UINT64_MAX if none waits.
  uint64_t oldest();

 private:
  enum class State { kFree, kArriving, kWaiting, kAnswered };

  struct Slot {
    State state = State::kFree;
    uint64_t number = 0;
    uint32_t credit = 0;  // for the reply
    bool queued = false;  // the sink had no room for some of the reply
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
  using Place = std::pair<uint64_t, uint64_t>;  // client and request; either may be gone

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
  size_t ended_ = 0;  // the number of clients that said goodbye
  std::unordered_map<uint64_t, std::unique_ptr<Client>> clients_;
  std::vector<Place> waiting_, sending_;
  Clock::time_point now_, retried_, swept_;
};

}  // namespace hocket
