// hocket-replay-node: replay in the network. It forwards frames between its two ports like a piece
// of wire, and answers the frames that are for it.

#include <cstdio>
#include <memory>
#include <vector>

#include "../datagram_server.h"
#include "../desk.h"
#include "flags.h"
#include "frame.h"
#include "idle.h"
#include "port.h"
#include "tables.h"

namespace hocket {
namespace {

struct NodeFlags {
  std::string address;
  uint64_t packet_bytes = kPacketBytes, max_clients = 256;
  uint64_t max_bytes = uint64_t{64} << 20, max_memory = uint64_t{512} << 20;
  EalOptions eal;
  TableFlags table;
};

class Node final : public PacketSink {
 public:
  Node(Desk& desk, const Place& own, const DatagramLimits& limits) : desk_(desk), own_(own) {
    for (uint16_t i = 0; i < Port::count(); ++i) ports_.push_back(std::make_unique<Port>(i));
    if (ports_.empty() || ports_.size() > 2) {
      throw std::invalid_argument("a node has two ports, or one at the end of a network: name them "
                                  "with --vdev or --allow, found " +
                                  std::to_string(ports_.size()));
    }
    DatagramLimits fitting = limits;
    for (const auto& port : ports_) {
      fitting.packet_bytes = std::min(fitting.packet_bytes, port->payload_bytes());
    }
    server_ = std::make_unique<DatagramServer>(desk, *this, fitting);
  }

  void run(Idle& idle) {
    while (!stopping) {
      const Clock::time_point now = Clock::now();
      bool busy = false;
      for (auto& port : ports_) busy |= take(*port, now);
      if (busy && desk_.take_changed()) server_->retry(now);
      if (now >= server_->due()) server_->tick(now);
      if (!busy && now - connected_ > kReconnectEvery) {
        connected_ = now;
        for (auto& port : ports_) port->reconnect();
      }
      for (auto& port : ports_) port->flush();
      if (idle.after(busy, now)) idle.sleep();
    }
  }

  void tell() const {
    std::printf("answered %lu requests, forwarded %lu frames, dropped %lu\n",
                desk_.traffic.requests, forwarded_, desk_.traffic.dropped);
  }

 private:
  static constexpr auto kReconnectEvery = std::chrono::milliseconds(500);

  bool take(Port& port, Clock::time_point now) {
    rte_mbuf* frames[Port::kBurst];
    const uint16_t found = port.receive(frames);
    for (uint16_t i = 0; i < found; ++i) take(port, frames[i], now);
    return found;
  }

  void take(Port& port, rte_mbuf* frame, Clock::time_point now) {
    const Look look = look_at(frame, own_, port);
    switch (look.seen) {
      case Seen::kReply: port.put_or_drop(frame); return;
      case Seen::kForeign:
        if (ports_.size() == 1) break;
        ++forwarded_;
        ports_[1 - port.number()]->put_or_drop(frame);
        return;
      case Seen::kPacket:
        server_->packet(Peer::of(look.from), look.payload, look.bytes, now);
        desk_.traffic.clients = server_->clients();
        break;
      case Seen::kFound: break;
    }
    rte_pktmbuf_free(frame);
  }

  bool send(const Peer& to, const PacketHeader& header, const uint8_t* payload,
            size_t bytes) override {
    const auto station = to.as<Station>();
    Port& port = *ports_[station.port];
    rte_mbuf* frame = port.room();
    if (!frame) return false;
    if (write_packet(frame, port, own_, station, header, payload, bytes) && port.put(frame)) {
      return true;
    }
    rte_pktmbuf_free(frame);
    return false;
  }

  Desk& desk_;
  Place own_;
  std::vector<std::unique_ptr<Port>> ports_;
  std::unique_ptr<DatagramServer> server_;
  uint64_t forwarded_ = 0;
  Clock::time_point connected_ = Clock::now();
};

void serve(int argc, char** argv) {
  NodeFlags given;
  Idle idle;
  Flags flags("hocket-replay-node",
              "Replay in the network: forwards frames between two ports, and answers those for it.");
  flags.add("address", "the node's own address and port, such as 10.0.0.2:7777", given.address);
  given.table.add_to(flags);
  flags.add("packet-bytes", "bytes of a UDP packet at most (1458)", given.packet_bytes);
  flags.add("max-bytes", "of one request or reply (64 MiB)", given.max_bytes);
  flags.add("max-memory", "of requests and replies under way (512 MiB)", given.max_memory);
  flags.add("max-clients", "at a time (256)", given.max_clients);
  idle.add_to(flags);
  flags.add(given.eal);
  if (!flags.parse(argc, argv)) return;
  const Place own = parse_place("--address", given.address, true);
  DatagramLimits limits;
  limits.packet_bytes = given.packet_bytes;
  limits.clients = given.max_clients;
  limits.client_bytes = std::min(2 * given.max_bytes, given.max_memory);
  limits.all_bytes = given.max_memory;
  Desk desk({given.table.open()}, given.max_bytes);
  stop_on_signals();
  const Eal eal(argv[0], given.eal);
  Node node(desk, own, limits);
  std::printf("serving %s at %s\n", given.table.name.c_str(), text_of(own).c_str());
  std::fflush(stdout);
  node.run(idle);
  node.tell();
}

}  // namespace
}  // namespace hocket

int main(int argc, char** argv) {
  return hocket::run_program("hocket-replay-node", hocket::serve, argc, argv);
}
