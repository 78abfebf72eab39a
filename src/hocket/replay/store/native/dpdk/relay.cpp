// hocket-replay-relay: connects clients on this machine to a node through DPDK. They use it like a
// server.

#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <unordered_map>
#include <vector>

#include "../datagram_client.h"
#include "flags.h"
#include "frame.h"
#include "idle.h"
#include "local.h"
#include "port.h"
#include "way.h"

namespace hocket {
namespace {

class Relay {
 public:
  Relay(Way& way, const std::string& path, const DatagramSettings& settings)
      : way_(way), settings_(settings), listener_(path), poll_(epoll_create1(EPOLL_CLOEXEC)) {
    watch(listener_.file(), EPOLLIN, EPOLL_CTL_ADD);
  }
  ~Relay() { close(poll_); }

  void run(Idle& idle) {
    while (!stopping) {
      bool busy = way_.poll([&](const uint8_t* data, size_t size) { deliver(data, size); });
      const Clock::time_point now = Clock::now();
      busy |= take_replies();
      // Files are polled less often than the port, because that takes a system call.
      if (busy || ++rounds_ % 8 == 0) busy |= look_at_files(0);
      tick(now);
      way_.flush();
      if (!idle.after(busy, now)) continue;
      // With nothing under way, only a file can bring work.
      if (under_way()) {
        idle.sleep();
      } else {
        look_at_files(kIdleMs);
      }
    }
  }

 private:
  static constexpr int kIdleMs = 20;

  struct Client {
    Client(Way& way, const DatagramSettings& settings, int file)
        : stream(std::make_unique<LocalStream>(file, settings.most_bytes)), client(way, settings) {}
    std::unique_ptr<LocalStream> stream;  // null when the client is gone
    DatagramClient client;
    uint64_t id = 0;
    uint32_t events = EPOLLIN;
  };

  void watch(int file, uint32_t events, int how) {
    epoll_event event{};
    event.events = events;
    event.data.fd = file;
    epoll_ctl(poll_, how, file, &event);
  }

  void deliver(const uint8_t* data, size_t size) {
    PacketHeader header;
    if (size < sizeof(header)) return;
    std::memcpy(&header, data, sizeof(header));
    const auto found = ids_.find(header.client);
    if (found != ids_.end()) found->second->client.packet(data, size, Clock::now());
  }

  bool look_at_files(int timeout_ms) {
    epoll_event events[32];
    const int found = epoll_wait(poll_, events, 32, timeout_ms);
    for (int i = 0; i < found; ++i) {
      const int file = events[i].data.fd;
      if (file == listener_.file()) {
        admit();
      } else if (const auto client = files_.find(file); client != files_.end()) {
        LocalStream& stream = *client->second->stream;
        if (events[i].events & EPOLLOUT) stream.write();
        // A client that is gone may have sent requests before. They are read first, if possible
        // now.
        const bool gone = events[i].events & (EPOLLHUP | EPOLLERR);
        if (gone && !(client->second->events & EPOLLIN)) stream.hang_up();
        take_requests(*client->second);
      }
    }
    return found > 0;
  }

  void admit() {
    for (int file; (file = listener_.accept()) >= 0;) {
      clients_.push_back(std::make_unique<Client>(way_, settings_, file));
      files_[file] = clients_.back().get();
      note_id(*clients_.back());
      watch(file, EPOLLIN, EPOLL_CTL_ADD);
    }
  }

  void take_requests(Client& client) {
    if (!client.stream) return;
    Header header;
    const uint8_t* body = nullptr;
    while (client.stream->has_room() && !client.client.is_full() &&
           client.stream->next(header, body)) {
      if (header.op == Op::kCancel) {
        client.client.abandon(header.request);
      } else {
        client.client.ask(header, body, Clock::now());
      }
    }
    settle(client);
  }

  // Finds clients by the number in their packets, which changes if the node forgets the client.
  void note_id(Client& client) {
    if (client.id == client.client.id()) return;
    ids_.erase(client.id);
    client.id = client.client.id();
    ids_[client.id] = &client;
  }

  // Updates the events to watch for a client, or drops it if it is gone.
  void settle(Client& client) {
    if (client.stream->is_over()) {
      files_.erase(client.stream->file());
      client.stream.reset();
      // Otherwise a sample that waits would be repeated, and in the end draw rows for nobody.
      client.client.abandon_all();
      Header bye;
      bye.op = Op::kBye;
      client.client.ask(bye, nullptr, Clock::now());
      return;
    }
    const bool has_room = client.stream->has_room();
    const uint32_t events = (has_room ? 0u : static_cast<uint32_t>(EPOLLOUT)) |
                            (has_room && !client.client.is_full() ? EPOLLIN : 0u);
    if (events != client.events) watch(client.stream->file(), events, EPOLL_CTL_MOD);
    client.events = events;
  }

  bool take_replies() {
    bool any = false;
    for (size_t i = 0; i < clients_.size(); ++i) {
      Client& client = *clients_[i];
      bool some = false;
      while (client.client.take(reply_)) {
        some = true;
        if (client.stream) client.stream->reply(reply_);
      }
      any |= some;
      if (some) take_requests(client);  // requests may have waited for room
      if (client.stream || client.client.under_way()) continue;
      ids_.erase(client.id);
      clients_.erase(clients_.begin() + static_cast<ptrdiff_t>(i--));
    }
    return any;
  }

  void tick(Clock::time_point now) {
    for (auto& client : clients_) {
      if (now >= client->client.due()) client->client.tick(now);
      note_id(*client);
    }
  }

  size_t under_way() const {
    size_t all = 0;
    for (const auto& client : clients_) all += client->client.under_way();
    return all;
  }

  Way& way_;
  DatagramSettings settings_;
  LocalListener listener_;
  int poll_;
  std::vector<std::unique_ptr<Client>> clients_;
  std::unordered_map<int, Client*> files_;
  std::unordered_map<uint64_t, Client*> ids_;
  Reply reply_;
  uint64_t rounds_ = 0;
};

void serve(int argc, char** argv) {
  std::string address, node, path;
  uint64_t max_bytes = uint64_t{64} << 20, packet_bytes = kPacketBytes;
  double patience = 5.0;
  EalOptions options;
  Idle idle;
  Flags flags("hocket-replay-relay",
              "Clients on this machine, over a Unix socket, reach a replay node through DPDK.");
  flags.add("socket", "the path of the Unix socket for clients (unix://PATH)", path);
  flags.add("node", "the node's address and port, such as 10.0.0.2:7777", node);
  flags.add("address", "this end's own address, such as 10.0.0.1", address);
  flags.add("patience", "seconds after which a silent node is an error (5)", patience);
  flags.add("packet-bytes", "bytes of a UDP packet at most (1458)", packet_bytes);
  flags.add("max-bytes", "of one request or reply (64 MiB)", max_bytes);
  idle.add_to(flags);
  flags.add(options);
  if (!flags.parse(argc, argv)) return;
  const Place there = parse_place("--node", node, true);
  Place own = parse_place("--address", address, false);
  own.port = static_cast<uint16_t>(49152 + random_client() % 16384);
  if (path.empty()) throw std::invalid_argument("--socket says where clients connect: a path");
  DatagramSettings settings;
  settings.name = "the replay node at dpdk://" + text_of(there);
  settings.most_bytes = max_bytes;
  settings.patience =
      std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(patience));
  stop_on_signals();
  const Eal eal(argv[0], options);
  if (Port::count() != 1) {
    throw std::invalid_argument("a relay has one port: name it with --vdev or --allow, found " +
                                std::to_string(Port::count()));
  }
  Way way(0, own, there, idle);
  settings.packet_bytes = std::min<size_t>(packet_bytes, way.payload_bytes());
  Relay relay(way, path, settings);
  std::printf("relaying %s to dpdk://%s\n", path.c_str(), text_of(there).c_str());
  std::fflush(stdout);
  relay.run(idle);
}

}  // namespace
}  // namespace hocket

int main(int argc, char** argv) {
  return hocket::run_program("hocket-replay-relay", hocket::serve, argc, argv);
}
