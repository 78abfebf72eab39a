// A network in memory, with a clock of its own, that loses, doubles, delays and damages packets as
// a seed says; and a table, a server and clients on it.

#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "datagram_client.h"
#include "datagram_server.h"
#include "random.h"

namespace hocket {

struct Faults {
  double lost = 0.0, doubled = 0.0, delayed = 0.0, damaged = 0.0, full = 0.0;
};

class Network {
 public:
  explicit Network(Faults faults, uint64_t seed = 1) : faults_(faults), random_(seed) {}

  using Deliver = std::function<void(const Peer& from, const uint8_t* data, size_t size)>;

  // An end of it: what is sent there is delivered here.
  struct End : PacketSink {
    Network& network;
    Peer own;
    Deliver deliver;
    Peer to;  // where packets without an address go
    explicit End(Network& network, uint64_t name) : network(network), own(Peer::of(name)) {
      network.ends_[name] = this;
    }
    ~End() { network.ends_.erase(own.as<uint64_t>()); }
    bool send(const Peer& given, const PacketHeader& header, const uint8_t* payload,
              size_t bytes) override {
      if (network.chance(network.faults_.full)) return false;
      std::vector<uint8_t> packet(sizeof(header) + bytes);
      std::memcpy(packet.data(), &header, sizeof(header));
      if (bytes) std::memcpy(packet.data() + sizeof(header), payload, bytes);
      const uint64_t name = given.as<uint64_t>() ? given.as<uint64_t>() : to.as<uint64_t>();
      network.put(own, name, std::move(packet));
      return true;
    }
  };

  Clock::time_point now() const { return now_; }
  void advance(Clock::duration time) { now_ += time; }
  bool is_quiet() const { return flying_.empty(); }
  Clock::time_point next() const {
    return flying_.empty() ? Clock::time_point::max() : flying_.begin()->first;
  }

  // The next packet, at its time.
  void deliver() {
    auto first = flying_.begin();
    Flying flying = std::move(first->second);
    now_ = std::max(now_, first->first);
    flying_.erase(first);
    ++delivered;
    if (const auto end = ends_.find(flying.to); end != ends_.end()) {
      // Memory of just that size, so that a read past its end is seen.
      const std::unique_ptr<uint8_t[]> exact(new uint8_t[flying.bytes.size()]);
      std::copy(flying.bytes.begin(), flying.bytes.end(), exact.get());
      end->second->deliver(flying.from, exact.get(), flying.bytes.size());
    }
  }

  void set_faults(Faults faults) { faults_ = faults; }
  Random& random() { return random_; }
  uint64_t delivered = 0;

 private:
  struct Flying {
    Peer from;
    uint64_t to;
    std::vector<uint8_t> bytes;
  };

  bool chance(double p) { return p > 0.0 && random_.uniform() < p; }

  void put(const Peer& from, uint64_t to, std::vector<uint8_t> packet) {
    if (chance(faults_.lost)) return;
    if (chance(faults_.doubled)) fly(from, to, packet);
    if (chance(faults_.damaged)) {
      const uint64_t bit = random_.next() % (packet.size() * 8);
      packet[bit / 8] ^= static_cast<uint8_t>(1 << (bit % 8));
      if (random_.next() % 4 == 0) packet.resize(random_.next() % packet.size());
    }
    fly(from, to, std::move(packet));
  }

  void fly(const Peer& from, uint64_t to, std::vector<uint8_t> packet) {
    auto time = std::chrono::microseconds(20);
    if (chance(faults_.delayed)) time += std::chrono::microseconds(random_.next() % 50000);
    flying_.emplace(now_ + time, Flying{from, to, std::move(packet)});
  }

  Faults faults_;
  Random random_;
  Clock::time_point now_{std::chrono::hours(1)};
  std::multimap<Clock::time_point, Flying> flying_;
  std::map<uint64_t, End*> ends_;
};

// Rows of a number, and of bytes that follow from it.
constexpr uint64_t kFill = 2000;

inline uint8_t fill_at(uint64_t number, uint64_t i) {
  return static_cast<uint8_t>((number * 2654435761u + i * 40503u) >> 7);
}

struct World {
  explicit World(Faults faults = {}, uint64_t seed = 1, DatagramLimits limits = {},
                 uint64_t capacity = 1 << 14, Limits rate = {})
      : network(faults, seed), end(network, kServer) {
    Options options;
    options.capacity = capacity;
    options.columns = {{sizeof(uint64_t)}, {kFill}};
    options.limits = rate;
    shared = std::make_shared<Shared>(std::make_unique<Table>(options));
    desk = std::make_unique<Desk>(std::vector<Served>{{"t", kSchema, shared, "", ""}},
                                  uint64_t{8} << 20);
    start(limits);
  }

  void start(DatagramLimits limits = {}) {
    server.reset();
    server = std::make_unique<DatagramServer>(*desk, end, limits);
    end.deliver = [this](const Peer& from, const uint8_t* data, size_t size) {
      server->packet(from, data, size, network.now());
    };
  }

  // Goes on until `done` says so; false if that takes longer than `most` of the network's time.
  bool run(const std::function<bool()>& done, Clock::duration most = std::chrono::minutes(10)) {
    const Clock::time_point end_at = network.now() + most;
    while (!done()) {
      Clock::time_point due = server ? server->due() : Clock::time_point::max();
      for (DatagramClient* client : clients) due = std::min(due, client->due());
      if (network.next() <= due && !network.is_quiet()) {
        network.deliver();
      } else {
        if (due > end_at) return false;
        network.advance(std::max(due - network.now(), Clock::duration(0)));
        if (server) server->tick(network.now());
        for (DatagramClient* client : clients) client->tick(network.now());
      }
      if (server && desk->take_changed()) server->retry(network.now());
      if (network.now() > end_at) return false;
    }
    return true;
  }

  static constexpr uint64_t kServer = 1;
  static constexpr char kSchema[] = "id:uint64 fill:uint8:2000";
  Network network;
  Network::End end;
  std::shared_ptr<Shared> shared;
  std::unique_ptr<Desk> desk;
  std::unique_ptr<DatagramServer> server;
  std::vector<DatagramClient*> clients;
};

// A client in the world, and what it asks for.
struct Actor {
  Actor(World& world, uint64_t name, DatagramSettings settings = {})
      : world(world), end(world.network, name), client(end, settings, 1000 + name) {
    end.to = Peer::of(World::kServer);
    end.deliver = [this](const Peer&, const uint8_t* data, size_t size) {
      client.packet(data, size, this->world.network.now());
    };
    world.clients.push_back(&client);
  }
  ~Actor() { world.clients.erase(std::find(world.clients.begin(), world.clients.end(), &client)); }

  Header header(Op op, uint32_t rows) {
    Header header;
    header.op = op;
    header.rows = rows;
    header.request = ++asked;
    header.schema = schema_hash(World::kSchema);
    return header;
  }

  void send(Header header, const std::vector<uint8_t>& body = {}) {
    header.length = body.size();
    client.ask(header, body.data(), world.network.now());
  }

  // Rows with the numbers from `first` on.
  void insert(uint64_t first, uint32_t rows) {
    std::vector<uint8_t> body(rows * (sizeof(uint64_t) + kFill));
    for (uint64_t r = 0; r < rows; ++r) {
      const uint64_t number = first + r;
      std::memcpy(body.data() + r * sizeof(number), &number, sizeof(number));
      uint8_t* to = body.data() + rows * sizeof(number) + r * kFill;
      for (uint64_t i = 0; i < kFill; ++i) to[i] = fill_at(number, i);
    }
    send(header(Op::kInsert, rows), body);
  }

  void sample(uint32_t rows, uint32_t timeout_ms = kForever) {
    Header asks = header(Op::kSample, rows);
    asks.timeout_ms = timeout_ms;
    send(asks);
  }

  // The next reply, however long it takes.
  bool wait(Reply& reply) {
    return world.run([&] { return client.take(reply); });
  }

  World& world;
  Network::End end;
  DatagramClient client;
  uint64_t asked = 0;
};

}  // namespace hocket
