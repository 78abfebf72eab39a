#include "server.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <stdexcept>

#include "spin.h"

namespace hocket {
namespace {

constexpr auto kAskAgain = std::chrono::milliseconds(5);  // tables change in other threads too
constexpr auto kLinger = std::chrono::seconds(1);
constexpr size_t kMostRegions = 16;
constexpr int kBacklog = 128, kIdleMs = 1000, kLooksBetweenFiles = 8,
              kLooksBetweenEnds = 256;

std::runtime_error failed(const std::string& what) {
  return std::runtime_error(what + ": " + std::strerror(errno));
}

// Whether somebody answers at a Unix socket; one that is left over from before is removed.
bool is_in_use(const sockaddr_un& at) {
  const int file = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const bool in_use = !connect(file, reinterpret_cast<const sockaddr*>(&at), sizeof(at));
  close(file);
  return in_use;
}

}  // namespace

Server::Server(std::vector<Served> tables, ServerOptions options)
    : desk_(std::move(tables), options.most_bytes), options_(options) {
  poll_ = epoll_create1(EPOLL_CLOEXEC);
  wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (poll_ < 0 || wake_ < 0) throw failed("a server cannot wait for its clients");
  watch(wake_, EPOLLIN);
}

Server::~Server() {
  clients_.clear();
  for (const auto& [file, is_unix] : listeners_) close(file);
  for (const std::string& path : paths_) unlink(path.c_str());
  close(wake_);
  close(poll_);
}

uint16_t Server::listen_tcp(const std::string& host, uint16_t port) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  const std::string where = host + ":" + std::to_string(port);
  if (const int error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found)) {
    throw std::runtime_error("cannot listen at " + where + ": " + gai_strerror(error));
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> all(found, freeaddrinfo);
  const int file =
      socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, found->ai_protocol);
  const int on = 1;
  setsockopt(file, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (file < 0 || bind(file, found->ai_addr, found->ai_addrlen) || listen(file, kBacklog)) {
    const auto error = failed("cannot listen at " + where);
    if (file >= 0) close(file);
    throw error;
  }
  listeners_[file] = false;
  watch(file, EPOLLIN);
  sockaddr_storage name{};
  socklen_t bytes = sizeof(name);
  getsockname(file, reinterpret_cast<sockaddr*>(&name), &bytes);
  return ntohs(name.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(name).sin6_port
                                          : reinterpret_cast<sockaddr_in&>(name).sin_port);
}

void Server::listen_unix(const std::string& path) {
  sockaddr_un at{};
  at.sun_family = AF_UNIX;
  if (path.size() >= sizeof(at.sun_path)) {
    throw std::runtime_error("cannot listen at " + path + ": a path of a socket has at most " +
                             std::to_string(sizeof(at.sun_path) - 1) + " bytes");
  }
  std::memcpy(at.sun_path, path.c_str(), path.size());
  if (is_in_use(at)) {
    throw std::runtime_error("cannot listen at " + path + ": another server does already");
  }
  if (errno == ECONNREFUSED) unlink(path.c_str());  // a socket of one that is gone
  const int file = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (file < 0 || bind(file, reinterpret_cast<sockaddr*>(&at), sizeof(at)) ||
      listen(file, kBacklog)) {
    const auto error = failed("cannot listen at " + path);
    if (file >= 0) close(file);
    throw error;
  }
  paths_.push_back(path);
  listeners_[file] = true;
  watch(file, EPOLLIN);
}

uint16_t Server::listen_udp(const std::string& host, uint16_t port) {
  udp_ = std::make_unique<UdpListener>(desk_, UdpAddress{host, port});
  watch(udp_->file(), EPOLLIN);
  return udp_->port();
}

void Server::stop() {
  stopping_ = true;
  const uint64_t one = 1;
  if (write(wake_, &one, sizeof(one)) < 0) return;  // it is awake
}

void Server::run() {
  const auto spin = std::chrono::duration_cast<Clock::duration>(
      std::chrono::duration<double>(options_.spin_seconds));
  auto quiet_since = Clock::now();
  for (int looks = 0; !stopping_; ++looks) {
    bool found = poll_regions();
    if (!found || looks % kLooksBetweenFiles == 0) found |= poll_files(0);
    retry_waiting();
    if (udp_ && Clock::now() >= udp_->due()) udp_->tick(Clock::now());
    if (looks % kLooksBetweenEnds == 0) end_lingering();
    if (some_gone_) forget_gone();
    if (found) {
      quiet_since = Clock::now();
      continue;
    }
    const auto quiet = Clock::now() - quiet_since;
    if (quiet > spin) {
      if (sleep()) quiet_since = Clock::now();
    } else if (quiet > std::chrono::nanoseconds(kAloneNs)) {
      sched_yield();
    }
  }
}

// Whether something happened.
bool Server::sleep() {
  for (Mapped* region : regions_) region->sleep(true);
  // Pairs with the fence of who asks: either we see the request, or it sees that we sleep.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  const bool asked = std::any_of(regions_.begin(), regions_.end(),
                                 [](const Mapped* region) { return region->has_request(); });
  const bool found = asked || poll_files(idle_ms());
  for (Mapped* region : regions_) region->sleep(false);
  return found;
}

// How long nothing has to be done, if nobody asks.
int Server::idle_ms() const {
  int most = desk_.traffic.waiting ? static_cast<int>(kAskAgain.count()) : kIdleMs;
  if (udp_) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(
        std::min(udp_->due(), Clock::now() + std::chrono::hours(1)) - Clock::now());
    most = std::clamp(static_cast<int>(left.count()), 0, most);
  }
  return most;
}

void Server::count_clients() {
  desk_.traffic.clients = clients_.size() + (udp_ ? udp_->server().clients() : 0);
}

bool Server::poll_regions() {
  bool found = false;
  for (Mapped* region : regions_) found |= region->poll();  // one of each, so that all have a turn
  return found;
}

bool Server::poll_files(int timeout_ms) {
  epoll_event events[64];
  const int count = epoll_wait(poll_, events, 64, timeout_ms);
  for (int i = 0; i < count; ++i) {
    const int file = events[i].data.fd;
    if (file == wake_) continue;  // it says that we stop
    if (udp_ && file == udp_->file()) {
      udp_->readable(Clock::now());
      count_clients();
      continue;
    }
    if (const auto listener = listeners_.find(file); listener != listeners_.end()) {
      accept_all(file);
    } else if (const auto bell = bells_.find(file); bell != bells_.end()) {
      bell->second->silence();
    } else if (const auto client = clients_.find(file); client != clients_.end()) {
      Stream& stream = *client->second->stream;
      // With nothing left to read, who is gone would be reported for ever.
      bool keep = !(events[i].events & EPOLLERR) &&
                  !(events[i].events & EPOLLHUP && client->second->stream->is_full());
      if (keep && events[i].events & EPOLLOUT) keep = stream.writable();
      if (keep && events[i].events & (EPOLLIN | EPOLLHUP)) keep = stream.readable();
      settle(*client->second, keep);
    }
  }
  return count > 0;
}

void Server::accept_all(int listener) {
  while (true) {
    const int file = accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (file < 0) return;
    if (clients_.size() >= options_.most_clients) {
      ++desk_.traffic.refused;
      close(file);
      continue;
    }
    const int on = 1;
    const bool is_unix = listeners_[listener];
    if (!is_unix) {
      setsockopt(file, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
      setsockopt(file, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
    }
    auto client = std::make_unique<Client>();
    Client* const at = client.get();
    Stream::Map map;
    if (is_unix) {
      map = [this, at](const Region& region, int memory, int bell) {
        return this->map(*at, region, memory, bell);
      };
    }
    client->stream = std::make_unique<Stream>(desk_, file, std::move(map));
    client->events = EPOLLIN;
    watch(file, EPOLLIN);
    clients_[file] = std::move(client);
    count_clients();
  }
}

std::string Server::map(Client& client, const Region& region, int memory, int bell) {
  if (client.regions.size() >= kMostRegions) {
    close(memory);
    close(bell);
    return "a client has at most " + std::to_string(kMostRegions) + " regions";
  }
  try {
    client.regions.push_back(std::make_unique<Mapped>(desk_, region, memory, bell));
  } catch (const std::exception& error) {
    return error.what();
  }
  Mapped* const made = client.regions.back().get();
  regions_.push_back(made);
  bells_[made->bell()] = made;
  watch(made->bell(), EPOLLIN);
  return "";
}

void Server::retry_waiting() {
  const bool changed = desk_.take_changed();
  if (!desk_.traffic.waiting) return;
  const auto now = Clock::now();
  if (!changed && now - asked_again_ < kAskAgain) return;
  asked_again_ = now;
  for (Mapped* region : regions_) region->retry();
  if (udp_) udp_->retry(now);
  for (auto& [file, client] : clients_) {
    if (client->stream->waiting() && !client->gone) settle(*client, client->stream->retry());
  }
}

// Who was told why its connection ends, and does not end it.
void Server::end_lingering() {
  const auto since = Clock::now() - kLinger;
  for (auto& [file, client] : clients_) {
    if (client->stream->ending_since() < since) settle(*client, false);
  }
}

// What to wait for of a client from now on.
void Server::settle(Client& client, bool keep) {
  if (!keep) {
    client.gone = some_gone_ = true;
    return;
  }
  const uint32_t events = (client.stream->is_full() ? 0u : EPOLLIN) |
                          (client.stream->has_more_to_send() ? EPOLLOUT : 0u);
  if (events == client.events) return;
  client.events = events;
  epoll_event event{};
  event.events = events;
  event.data.fd = client.stream->file();
  epoll_ctl(poll_, EPOLL_CTL_MOD, client.stream->file(), &event);
}

void Server::forget_gone() {
  some_gone_ = false;
  for (auto it = clients_.begin(); it != clients_.end();) {
    if (!it->second->gone) {
      ++it;
      continue;
    }
    for (const auto& region : it->second->regions) {
      bells_.erase(region->bell());
      regions_.erase(std::find(regions_.begin(), regions_.end(), region.get()));
    }
    it = clients_.erase(it);
  }
  count_clients();
}

void Server::watch(int file, uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.fd = file;
  if (epoll_ctl(poll_, EPOLL_CTL_ADD, file, &event)) throw failed("a server cannot wait");
}

}  // namespace hocket
