#include "datagram_server.h"

#include <algorithm>

namespace hocket {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

// Waiting requests are retried now and then, because tables also change without this server's desk,
// when other threads of its process use them.
constexpr auto kRetryEvery = milliseconds(10);
constexpr auto kSendEvery = microseconds(100);
constexpr auto kEnded = std::chrono::seconds(5);  // a goodbye may be repeated so long
constexpr size_t kSmall = 1024;      // there is always room for an error
constexpr size_t kKeep = 64 * 1024;  // the memory that a slot keeps for its next request
constexpr char kNoRoom[] =
    "the reply is too large for what this client may have here: ask for less at a time, or wait "
    "for replies before asking for others";

PacketHeader to_client(uint64_t id, uint64_t number) {
  PacketHeader header;
  header.kind = PacketKind::kReply;
  header.client = id;
  header.request = number;
  return header;
}

}  // namespace

// The room for the reply of a slot.
struct DatagramServer::Room : Outbox {
  Room(DatagramServer& server, Client& client, Slot& slot)
      : server(server), client(client), slot(slot) {}
  uint8_t* room(uint64_t bytes) override {
    return server.hold(client, slot.reply, bytes) ? slot.reply.resize(bytes) : nullptr;
  }
  DatagramServer& server;
  Client& client;
  Slot& slot;
};

DatagramServer::DatagramServer(Desk& desk, PacketSink& sink, const DatagramLimits& limits)
    : desk_(desk), sink_(sink), limits_(limits) {
  limits_.packet_bytes = std::clamp(limits.packet_bytes, sizeof(PacketHeader) + kLeastStride,
                                    kMostPacketBytes);
}

DatagramServer::~DatagramServer() {
  while (!clients_.empty()) forget(*clients_.begin()->second);
}

void DatagramServer::packet(const Peer& from, const uint8_t* data, size_t size,
                            Clock::time_point now) {
  now_ = now;
  Packet packet;
  if (!read_packet(data, size, packet) || packet.header.kind >= PacketKind::kReply) {
    ++desk_.traffic.dropped;
    return;
  }
  const PacketHeader& header = packet.header;
  if (header.kind != PacketKind::kMore && header.length > most_message()) {
    refuse(from, packet, Code::kBad,
           "a message of " + std::to_string(header.length) + " bytes is too large: at most " +
               std::to_string(most_message()));
    return;
  }
  Client* client = known(from, packet, now);
  if (!client) return;
  const uint64_t oldest = header.request - header.behind;
  for (uint64_t i = 0; i < kMostUnderWay && client->oldest < oldest; ++i, ++client->oldest) {
    release(*client, client->slots[client->oldest % kMostUnderWay]);
  }
  client->oldest = std::max(client->oldest, oldest);
  if (header.request < client->oldest) return;  // it was answered long ago
  if (header.request >= client->oldest + kMostUnderWay) {
    ++desk_.traffic.dropped;
    return;
  }
  Slot& slot = client->slots[header.request % kMostUnderWay];
  if (header.kind == PacketKind::kMore) {
    more(*client, slot, packet);
  } else {
    fragment(*client, slot, packet);
  }
}

// The client that sent a packet, which is made for its first packet. Null if it gets no answer.
DatagramServer::Client* DatagramServer::known(const Peer& from, const Packet& packet,
                                              Clock::time_point now) {
  const PacketHeader& header = packet.header;
  const auto found = clients_.find(header.client);
  Client* client = found == clients_.end() ? nullptr : found->second.get();
  if (!client) {
    if (header.request - header.behind != 1) {
      // Earlier requests of this client were answered, so another server did that, or this one has
      // forgotten the client.
      PacketHeader reply = to_client(header.client, header.request);
      reply.kind = PacketKind::kUnknown;
      send_packet(sink_, from, reply, nullptr, 0);
      return nullptr;
    }
    if (header.kind == PacketKind::kMore) return nullptr;
    client = admit(header.client);
    if (!client) {
      ++desk_.traffic.dropped;
      refuse(from, packet, Code::kClosed,
             "this server has " + std::to_string(limits_.clients) + " clients already");
      return nullptr;
    }
  }
  client->peer = from;
  client->heard = now;
  return client;
}

DatagramServer::Client* DatagramServer::admit(uint64_t id) {
  if (clients_.size() >= limits_.clients) {
    const auto ended = std::find_if(clients_.begin(), clients_.end(),
                                    [](const auto& each) { return each.second->ended; });
    if (ended == clients_.end()) return nullptr;
    forget(*ended->second);
  }
  auto& made = clients_[id] = std::make_unique<Client>();
  made->id = id;
  return made.get();
}

void DatagramServer::forget(Client& client) {
  for (Slot& slot : client.slots) {
    release(client, slot);
    bytes_ -= slot.request.room() + slot.reply.room();
  }
  ended_ -= client.ended;
  clients_.erase(client.id);
}

void DatagramServer::release(Client& client, Slot& slot) {
  if (slot.pending.begun) {
    Header header;
    std::memcpy(&header, slot.request.data(), sizeof(header));
    desk_.forget(header, slot.pending);
  }
  slot.state = State::kFree;
  slot.queued = false;
  slot.pending = Pending();
  shrink(client, slot.request);
  shrink(client, slot.reply);
}

void DatagramServer::shrink(Client& client, Bytes& bytes) {
  if (bytes.room() <= kKeep) return;
  client.bytes -= bytes.room();
  bytes_ -= bytes.room();
  bytes.free();
}

// Makes room for `size` bytes, if the client may have so much memory.
bool DatagramServer::hold(Client& client, Bytes& bytes, uint64_t size) {
  if (size <= bytes.room()) return true;
  const uint64_t more = size - bytes.room();
  const bool fits = client.bytes + more <= limits_.client_bytes &&
                    bytes_ + more <= limits_.all_bytes;
  if (!fits && size > kSmall) return false;
  bytes.resize(size);
  client.bytes += more;
  bytes_ += more;
  return true;
}

void DatagramServer::fragment(Client& client, Slot& slot, const Packet& packet) {
  const PacketHeader& header = packet.header;
  // A limit, because the sender's address may be forged: a small request must not flood it.
  slot.credit = std::max(slot.state == State::kFree ? 0 : slot.credit,
                         std::min(header.credit, kMostCredit));
  if (slot.state == State::kWaiting || slot.state == State::kAnswered) {
    if (header.kind == PacketKind::kProbe) remind(client, slot, header);
    return;
  }
  if (slot.state == State::kFree) {
    slot.number = header.request;
    if (header.fragments == 1) {  // the usual case: answered without a copy
      if (!answer(client, slot, packet.payload, packet.bytes)) ++desk_.traffic.dropped;
      return;
    }
    if (!hold(client, slot.request, header.length)) {
      ++desk_.traffic.dropped;
      return;
    }
    slot.request.resize(header.length);
    slot.state = State::kArriving;
    slot.arriving.begin(header, limits_.credit, kFirstCredit);
  }
  if (!slot.arriving.fits(header)) {
    ++desk_.traffic.dropped;
    return;
  }
  slot.arriving.add(packet, slot.request);
  if (slot.arriving.is_whole()) {
    if (!answer(client, slot, slot.request.data(), slot.request.size())) {
      ++desk_.traffic.dropped;
      release(client, slot);
    }
    return;
  }
  if (slot.arriving.wants_more() || header.kind == PacketKind::kProbe) {
    remind(client, slot, header);
  }
}

// Tells a client how far its request has got.
void DatagramServer::remind(Client& client, Slot& slot, const PacketHeader& header) {
  if (slot.state == State::kAnswered) {
    // As much as the first time. If that arrives, the client asks for more by itself.
    slot.leaving.repeat(sink_, client.peer, to_client(client.id, slot.number), slot.reply,
                        {{0, slot.credit}});
    return;
  }
  const bool arriving = slot.state == State::kArriving;
  send_state(sink_, client.peer, to_client(client.id, slot.number), PacketKind::kHave,
             arriving ? slot.arriving.granted() : header.fragments,
             arriving && header.kind == PacketKind::kProbe ? slot.arriving.gaps()
                                                           : std::vector<Gap>());
}

void DatagramServer::more(Client& client, Slot& slot, const Packet& packet) {
  if (slot.state != State::kAnswered || slot.number != packet.header.request) return;
  slot.leaving.repeat(sink_, client.peer, to_client(client.id, slot.number), slot.reply,
                      read_gaps(packet));
  slot.leaving.grant(std::min(packet.header.credit, slot.leaving.sent() + kMostCredit));
  send(client, slot);
}

// Answers a request. Returns false if it is no message.
bool DatagramServer::answer(Client& client, Slot& slot, const uint8_t* message, size_t size) {
  Header header;
  if (size < sizeof(header)) return false;
  std::memcpy(&header, message, sizeof(header));
  if (header.magic != kWireMagic || header.length != size - sizeof(header)) return false;
  Room room(*this, client, slot);
  slot.reply.resize(0);
  const Outcome outcome = desk_.answer(header, message + sizeof(header), slot.pending, room);
  if (outcome == Outcome::kWait) {
    if (slot.state == State::kWaiting) return true;
    if (message != slot.request.data()) {
      if (!hold(client, slot.request, size)) {
        desk_.forget(header, std::exchange(slot.pending, {}));
        release(client, slot);  // the client asks again, and there may be room then
        return false;
      }
      slot.request.assign(message, size);
    }
    slot.state = State::kWaiting;
    waiting_.emplace_back(client.id, slot.number);
    return true;
  }
  if (outcome == Outcome::kEnd && !std::exchange(client.ended, true)) ++ended_;
  if (!slot.reply.size()) desk_.refuse(header, Code::kBad, kNoRoom, room);
  slot.state = State::kAnswered;
  slot.pending = Pending();
  shrink(client, slot.request);
  slot.leaving.begin(static_cast<uint32_t>(slot.reply.size()), limits_.packet_bytes, slot.credit);
  send(client, slot);
  return true;
}

void DatagramServer::send(Client& client, Slot& slot) {
  if (slot.leaving.send(sink_, client.peer, to_client(client.id, slot.number), slot.reply)) return;
  if (!std::exchange(slot.queued, true)) sending_.emplace_back(client.id, slot.number);
}

// Refuses a request, and remembers nothing of its sender.
void DatagramServer::refuse(const Peer& to, const Packet& packet, Code code,
                            const std::string& why) {
  Header header;
  if (packet.header.fragment || packet.bytes < sizeof(header)) return;
  std::memcpy(&header, packet.payload, sizeof(header));
  struct Small : Outbox {
    uint8_t* room(uint64_t size) override { return bytes.resize(size); }
    Bytes bytes;
  } small;
  desk_.refuse(header, code, why, small);
  Leaving leaving;
  leaving.begin(static_cast<uint32_t>(small.bytes.size()), limits_.packet_bytes, 1);
  leaving.send(sink_, to, to_client(packet.header.client, packet.header.request), small.bytes);
}

uint64_t DatagramServer::most_message() const {
  const uint64_t most = std::min(desk_.most_bytes() + sizeof(Header), limits_.client_bytes);
  return std::min<uint64_t>(most, UINT32_MAX);
}

DatagramServer::Slot* DatagramServer::find(const Place& place) {
  const auto client = clients_.find(place.first);
  if (client == clients_.end()) return nullptr;
  Slot& slot = client->second->slots[place.second % kMostUnderWay];
  return slot.number == place.second ? &slot : nullptr;
}

uint64_t DatagramServer::oldest() {
  uint64_t found = UINT64_MAX;
  for (const Place& place : waiting_) {
    const Slot* slot = find(place);
    if (slot && slot->state == State::kWaiting) found = std::min(found, slot->pending.ticket);
  }
  return found;
}

void DatagramServer::retry(Clock::time_point now) {
  now_ = now;
  retried_ = now_;
  const std::vector<Place> waiting = std::exchange(waiting_, {});
  for (const Place& place : waiting) {
    Slot* slot = find(place);
    if (!slot || slot->state != State::kWaiting) continue;
    answer(*clients_[place.first], *slot, slot->request.data(), slot->request.size());
    if (slot->state == State::kWaiting) waiting_.push_back(place);
  }
}

void DatagramServer::tick(Clock::time_point now) {
  now_ = now;
  const std::vector<Place> sending = std::exchange(sending_, {});
  for (const Place& place : sending) {
    Slot* slot = find(place);
    if (!slot) continue;
    slot->queued = false;
    if (slot->state == State::kAnswered) send(*clients_[place.first], *slot);
  }
  if (!waiting_.empty() && now - retried_ >= kRetryEvery) retry(now);
  if (now - swept_ < limits_.idle / 4) return;
  swept_ = now;
  std::vector<Client*> silent;
  for (const auto& each : clients_) {
    Client& client = *each.second;
    const auto most = client.ended ? std::min<Clock::duration>(limits_.idle, kEnded) : limits_.idle;
    if (now - client.heard > most) silent.push_back(&client);
  }
  for (Client* client : silent) forget(*client);
}

Clock::time_point DatagramServer::due() const {
  if (!sending_.empty()) return now_ + kSendEvery;
  if (!waiting_.empty()) return retried_ + kRetryEvery;
  return swept_ + limits_.idle / 4;
}

}  // namespace hocket
