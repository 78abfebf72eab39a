#include "server.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <stdexcept>

#include "spin.h"
#include "unix_path.h"

namespace hocket {
namespace {

constexpr auto kAskAgain = std::chrono::milliseconds(5);  // since other threads change tables, too
constexpr auto kLinger = std::chrono::seconds(1);
constexpr size_t kMostRegions = 32;
constexpr int kBacklog = 128, kIdleMs = 1000, kLooksBetweenFiles = 8, kAccepts = 64;
constexpr uint64_t kTurnedAway = 64;  // most clients at once that are told why they are turned away

std::runtime_error failed(const std::string& what) {
  return std::runtime_error(what + ": " + std::strerror(errno));
}

}  // namespace

Server::Server(std::vector<Served> tables, ServerOptions options)
    : desk_(std::move(tables), options.most_bytes), options_(options) {
  poll_ = epoll_create1(EPOLL_CLOEXEC);
  wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  spare_ = open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (poll_ < 0 || wake_ < 0) throw failed("a server cannot wait for its clients");
  watch(wake_, EPOLLIN);
}

Server::~Server() {
  end();
  close(spare_);
  close(wake_);
  close(poll_);
}

// Ends all connections, so that no client waits for an answer.
void Server::end() {
  regions_.clear();
  clients_.clear();
  udp_.reset();
  for (const auto& [file, is_unix] : listeners_) close(file);
  listeners_.clear();
  for (const std::string& path : paths_) unlink(path.c_str());
  paths_.clear();
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
  const auto at = unix_address(path);
  if (!at) {
    throw std::runtime_error("cannot listen at " + path + ": a path of a socket has at most " +
                             std::to_string(kMostPathBytes) + " bytes");
  }
  if (!free_path(*at, SOCK_STREAM)) {
    throw std::runtime_error("cannot listen at " + path + ": another server does already");
  }
  const int file = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (file < 0 || bind(file, reinterpret_cast<const sockaddr*>(&*at), sizeof(*at)) ||
      listen(file, kBacklog)) {
    const auto why = failed("cannot listen at " + path);
    if (file >= 0) close(file);
    throw why;
  }
  paths_.push_back(path);
  listeners_[file] = true;
  watch(file, EPOLLIN);
}

uint16_t Server::listen_udp(const std::string& host, uint16_t port) {
  DatagramLimits limits;
  limits.clients = options_.most_clients;
  try {
    udp_ = std::make_unique<UdpListener>(desk_, UdpAddress{host, port}, UdpOptions{}, limits);
  } catch (const std::runtime_error& error) {
    throw std::runtime_error("cannot listen at " + std::string(error.what()));
  }
  watch(udp_->file(), EPOLLIN);
  return udp_->port();
}

void Server::stop() {
  stopping_ = true;
  const uint64_t one = 1;
  if (write(wake_, &one, sizeof(one)) < 0) return;  // the server is awake already
}

void Server::run() {
  try {
    serve();
  } catch (...) {
    end();
    throw;
  }
}

void Server::serve() {
  const auto spin = std::chrono::duration_cast<Clock::duration>(
      std::chrono::duration<double>(options_.spin_seconds));
  auto quiet_since = Clock::now();
  for (int looks = 0; !stopping_; ++looks) {
    bool found = poll_regions();
    if (!found || looks % kLooksBetweenFiles == 0) found |= poll_files(0);
    retry_waiting();
    if (udp_ && Clock::now() >= udp_->due()) {
      udp_->tick(Clock::now());
      count_clients();
    }
    end_lingering();
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

// Sleeps until something happens. Returns false if nothing did.
bool Server::sleep() {
  for (Mapped* region : regions_) region->sleep(true);
  // Pairs with the fence of a client that asks: we see its request, or it sees that we sleep.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  const bool asked = std::any_of(regions_.begin(), regions_.end(),
                                 [](const Mapped* region) { return region->has_request(); });
  const bool found = asked || poll_files(idle_ms());
  for (Mapped* region : regions_) region->sleep(false);
  return found;
}

// How long the server may sleep if there are no requests.
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
  for (Mapped* region : regions_) {  // one request of each client, so that all have a turn
    found |= region->poll();
    if (desk_.has_changed()) retry_waiting();  // before requests that came later
  }
  return found;
}

bool Server::poll_files(int timeout_ms) {
  epoll_event events[64];
  const int count = epoll_wait(poll_, events, 64, timeout_ms);
  for (int i = 0; i < count; ++i) {
    const int file = events[i].data.fd;
    if (file == wake_) continue;  // `stop` was called
    if (udp_ && file == udp_->file()) {
      udp_->readable(Clock::now(), [this] {
        if (desk_.has_changed()) retry_waiting();
      });
      count_clients();
      continue;
    }
    if (const auto listener = listeners_.find(file); listener != listeners_.end()) {
      accept_some(file);
    } else if (const auto client = clients_.find(file); client != clients_.end()) {
      answer(*client->second, events[i].events);
      if (desk_.has_changed()) retry_waiting();
    }
  }
  return count > 0;
}

void Server::answer(Client& client, uint32_t events) {
  Stream& stream = *client.stream;
  // A client that is gone would be reported for ever while its stream is full, so it is dropped.
  bool keep = !(events & EPOLLERR) && !(events & EPOLLHUP && stream.is_full());
  try {
    if (keep && events & EPOLLOUT) keep = stream.writable();
    if (keep && events & (EPOLLIN | EPOLLHUP)) keep = stream.readable();
  } catch (const std::bad_alloc&) {  // other clients may need less memory
    keep = false;
  }
  settle(client, keep);
}

void Server::accept_some(int listener) {
  for (int i = 0; i < kAccepts; ++i) {
    const int file = accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (file < 0) {
      if (errno == EMFILE || errno == ENFILE) turn_away_one(listener);
      return;
    }
    try {
      accept(file, listeners_[listener]);
    } catch (const std::exception&) {  // it is closed again, and other clients go on
      ++desk_.traffic.refused;
    }
  }
}

// Accepts and closes a connection when the process can open no more files, with a file that is
// reserved for this. Otherwise the connection would be reported for ever.
void Server::turn_away_one(int listener) {
  close(spare_);
  if (const int file = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC); file >= 0) close(file);
  spare_ = open("/dev/null", O_RDONLY | O_CLOEXEC);
  ++desk_.traffic.refused;
}

void Server::accept(int file, bool is_unix) {
  auto client = std::make_unique<Client>();
  Client* const at = client.get();
  Stream::Map map;
  if (is_unix) {
    map = [this, at](const Region& region, int memory, int bell) {
      return this->map(*at, region, memory, bell);
    };
  } else {
    const int on = 1;
    setsockopt(file, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    setsockopt(file, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
  }
  at->stream = std::make_unique<Stream>(desk_, file, std::move(map));
  if (clients_.size() >= options_.most_clients + kTurnedAway) return;
  at->events = EPOLLIN;
  watch(file, EPOLLIN);
  clients_[file] = std::move(client);
  count_clients();
  if (clients_.size() <= options_.most_clients) return;
  at->stream->turn_away("this server has " + std::to_string(options_.most_clients) +
                        " clients already");
  settle(*at, at->stream->writable());
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
  try {
    // Edge-triggered, so that nobody has to read the bell: a client could make reading it block.
    watch(made->bell(), EPOLLIN | EPOLLET);
  } catch (const std::exception& error) {
    client.regions.pop_back();
    return error.what();
  }
  regions_.push_back(made);
  return "";
}

void Server::retry_waiting() {
  const bool changed = desk_.take_changed();
  if (!desk_.traffic.waiting) return;
  const auto now = Clock::now();
  if (!changed && now - asked_again_ < kAskAgain) return;
  asked_again_ = now;
  struct Waiting {
    uint64_t since;
    Mapped* region;
    Client* client;  // if both are null, these are the clients over UDP
  };
  std::vector<Waiting> waiting;  // those that waited longest come first, so that all have a turn
  for (Mapped* region : regions_) {
    if (region->waiting()) waiting.push_back({region->oldest(), region, nullptr});
  }
  for (auto& [file, client] : clients_) {
    if (!client->stream->waiting() || client->gone) continue;
    waiting.push_back({client->stream->oldest(), nullptr, client.get()});
  }
  if (udp_ && udp_->server().oldest() < UINT64_MAX) {
    waiting.push_back({udp_->server().oldest(), nullptr, nullptr});
  }
  std::sort(waiting.begin(), waiting.end(),
            [](const Waiting& a, const Waiting& b) { return a.since < b.since; });
  for (const Waiting& next : waiting) {
    if (next.region) {
      next.region->retry();
    } else if (!next.client) {
      udp_->retry(now);
    } else {
      settle(*next.client, next.client->stream->retry());
    }
  }
}

// Ends connections of clients that were told why, and did not end them.
void Server::end_lingering() {
  const auto since = Clock::now() - kLinger;
  if (since < looked_for_lingering_) return;
  looked_for_lingering_ = since + kLinger;
  for (auto& [file, client] : clients_) {
    if (client->stream->ending_since() < since) settle(*client, false);
  }
}

// Decides which events of a client to wait for, or drops it.
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
      regions_.erase(std::find(regions_.begin(), regions_.end(), region.get()));
      epoll_ctl(poll_, EPOLL_CTL_DEL, region->bell(), nullptr);  // the client may have it open
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
