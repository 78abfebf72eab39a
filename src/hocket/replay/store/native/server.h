// A replay server: one thread that answers all clients.
//
// It polls for requests for a while before it sleeps, since waking up takes longer than most of
// them. Requests that wait are retried whenever a table has changed.

#pragma once

#include <atomic>
#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "desk.h"
#include "mapped.h"
#include "stream.h"
#include "udp.h"

namespace hocket {

struct ServerOptions {
  uint64_t most_bytes = uint64_t{1} << 30;  // in a message
  uint64_t most_clients = 1000;
  double spin_seconds = 50e-6;
};

class Server {
 public:
  explicit Server(std::vector<Served> tables, ServerOptions options = {});
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // To be called before `run`; throw std::runtime_error. They return the port, which the system
  // chooses if it is 0.
  uint16_t listen_tcp(const std::string& host, uint16_t port);
  void listen_unix(const std::string& path);
  uint16_t listen_udp(const std::string& host, uint16_t port);

  // Answers requests until `stop` is called, from any thread.
  void run();
  void stop();
  void end();  // ends all connections; not to be called during `run`

 private:
  struct Client {
    std::unique_ptr<Stream> stream;
    std::list<std::unique_ptr<Mapped>> regions;
    uint32_t events = 0;
    bool gone = false;
  };

  void watch(int file, uint32_t events);
  void accept_some(int listener);
  void accept(int file, bool is_unix);
  void turn_away_one(int listener);
  void answer(Client& client, uint32_t events);
  std::string map(Client& client, const Region& region, int memory, int bell);
  void serve();
  bool poll_regions();
  bool poll_files(int timeout_ms);
  void retry_waiting();
  void settle(Client& client, bool keep);
  void end_lingering();
  void forget_gone();
  bool sleep();
  int idle_ms() const;
  void count_clients();

  Desk desk_;
  ServerOptions options_;
  int poll_ = -1, wake_ = -1, spare_ = -1;
  std::unordered_map<int, bool> listeners_;  // true for Unix sockets
  std::vector<std::string> paths_;
  std::unique_ptr<UdpListener> udp_;
  std::unordered_map<int, std::unique_ptr<Client>> clients_;
  std::vector<Mapped*> regions_;
  bool some_gone_ = false;
  Clock::time_point asked_again_, looked_for_lingering_;
  std::atomic<bool> stopping_{false};
};

}  // namespace hocket
