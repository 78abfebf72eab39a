// A replay server for Python. Its thread never takes Python's lock.

#pragma once

#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "python_table.h"
#include "server.h"

namespace hocket {

class PythonServer {
 public:
  // A table with its name, its schema, and the files of its snapshot and its tally.
  using About = std::tuple<std::string, std::string, PythonTable*, std::string, std::string>;

  PythonServer(const std::vector<About>& tables, uint64_t most_bytes, uint64_t most_clients,
               double spin_seconds) {
    std::vector<Served> served;
    for (const auto& [name, schema, table, snapshot, tally] : tables) {
      served.push_back({name, schema, table->shared(), snapshot, tally});
    }
    server_ = std::make_unique<Server>(std::move(served),
                                       ServerOptions{most_bytes, most_clients, spin_seconds});
  }
  ~PythonServer() { stop(); }
  PythonServer(const PythonServer&) = delete;
  PythonServer& operator=(const PythonServer&) = delete;

  uint16_t listen_tcp(const std::string& host, uint16_t port) {
    return server_->listen_tcp(host, port);
  }
  void listen_unix(const std::string& path) { server_->listen_unix(path); }
  uint16_t listen_udp(const std::string& host, uint16_t port) {
    return server_->listen_udp(host, port);
  }

  void start() {
    thread_ = std::thread([this] {
      try {
        server_->run();
      } catch (const std::exception& error) {
        problem_ = error.what();
      }
      is_done_ = true;
    });
  }

  // The error that ended the server; None while it runs, and after `stop`.
  nb::object problem() const {
    if (!is_done_ || problem_.empty()) return nb::none();
    return nb::str(problem_.c_str());
  }

  void stop() {
    if (!server_) return;
    nb::gil_scoped_release others;
    server_->stop();
    if (thread_.joinable()) thread_.join();
    server_.reset();
  }

 private:
  std::unique_ptr<Server> server_;
  std::thread thread_;
  std::atomic<bool> is_done_{false};
  std::string problem_;
};

}  // namespace hocket
