#include <algorithm>
#include <cstring>
#include <list>

#include "client.h"
#include "udp.h"

namespace hocket {
namespace {

using std::chrono::milliseconds;

constexpr auto kLook = milliseconds(20);  // requests that others make meanwhile are not due sooner
constexpr auto kLong = milliseconds(50);  // a request that takes longer probably waits
constexpr size_t kMostWays = 64;

std::string name_of(const UdpAddress& address) {
  return "udp://" + address.host + ":" + std::to_string(address.port);
}

// Threads may ask while one of them reads. That one receives without the lock; everything else is
// done with the lock held.
class UdpClient final : public Client {
 public:
  explicit UdpClient(const UdpAddress& address) : link_(address), server_(name_of(address)) {
    settings_.name = "the replay server at " + server_;
    settings_.credit = link_.credit(settings_.packet_bytes);
  }

  ~UdpClient() override { close(); }

  void ask(Call& call, const std::vector<In>& parts) override {
    call.header.length = 0;
    for (const In& part : parts) call.header.length += part.bytes;
    std::vector<uint8_t> body(call.header.length);
    uint8_t* to = body.data();
    for (const In& part : parts) {
      if (part.bytes) std::memcpy(to, part.data, part.bytes);
      to += part.bytes;
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!broken_.empty()) throw Gone(broken_);
    const Clock::time_point now = Clock::now();
    Way& way = free_way(now);
    call.header.request = next_request_++;
    try {
      way.client.ask(call.header, body.data(), now);
    } catch (const std::invalid_argument& error) {
      throw Refused(error.what());
    }
    way.calls[call.header.request] = {&call, now};
    link_.flush();
  }

  bool wait(Call& call, Clock::time_point until) override {
    std::unique_lock<std::mutex> lock(mutex_);
    while (!call.is_done) {
      if (!broken_.empty()) throw Gone(broken_);
      if (Clock::now() >= until) return false;
      if (is_reading_) {
        changed_.wait_until(lock, until);
      } else {
        read(lock, until);
      }
    }
    return true;
  }

  void abandon(Call& call) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (Way& way : ways_) {
      if (way.calls.erase(call.header.request)) way.client.abandon(call.header.request);
    }
    link_.flush();
  }

  void close() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (broken_.empty()) say_goodbye();
    fail("this connection to the replay server at " + server_ + " was closed");
  }

  const std::string& server() const override { return server_; }

 private:
  struct Asked {
    Call* call;
    Clock::time_point since;
  };

  // The server takes each way for a client. A request that waits at the server blocks those that
  // are 16 requests later, and keeps it from dropping replies in between. So others go another way.
  struct Way {
    Way(PacketSink& sink, const DatagramSettings& settings) : client(sink, settings) {}
    bool is_slow(Clock::time_point now) const {
      return !calls.empty() && now - calls.begin()->second.since > kLong;
    }
    DatagramClient client;
    std::map<uint64_t, Asked> calls;
  };

  Way& free_way(Clock::time_point now) {
    for (Way& way : ways_) {
      if (!way.client.is_full() && !way.is_slow(now)) return way;
    }
    if (ways_.size() < kMostWays) return ways_.emplace_back(link_, settings_);
    for (Way& way : ways_) {
      if (!way.client.is_full()) return way;
    }
    throw Refused("too many requests of this client wait already");
  }

  // Receives packets, waiting a while for the first, and then does what is due.
  void read(std::unique_lock<std::mutex>& lock, Clock::time_point until) {
    until = std::min(until, Clock::now() + kLook);
    for (const Way& way : ways_) until = std::min(until, way.client.due());
    is_reading_ = true;
    lock.unlock();
    link_.receive(until, [&](const uint8_t* data, size_t size) {
      if (!lock.owns_lock()) lock.lock();
      PacketHeader header;
      if (size < sizeof(header)) return;
      std::memcpy(&header, data, sizeof(header));
      for (Way& way : ways_) {
        if (way.client.id() != header.client) continue;
        return way.client.packet(data, size, Clock::now());
      }
    });
    if (!lock.owns_lock()) lock.lock();
    is_reading_ = false;
    const Clock::time_point now = Clock::now();
    for (Way& way : ways_) {
      if (now >= way.client.due()) way.client.tick(now);
      while (way.client.take(reply_)) settle(way);
    }
    link_.flush();
    changed_.notify_all();
  }

  void settle(Way& way) {
    const auto found = way.calls.find(reply_.header.request);
    if (found == way.calls.end()) return;  // nobody waits for it now
    Call& call = *found->second.call;
    way.calls.erase(found);
    if (reply_.header.version != kWireVersion) {
      return fail("what answers at " + server_ + " is no replay server of this version");
    }
    if (reply_.header.code == Code::kClosed) return fail(reply_.text());
    if (reply_.header.code != Code::kOk || call.outs.empty()) {
      call.text = reply_.text();
    } else if (!fill(call)) {
      return fail("a reply of the replay server at " + server_ + " has " +
                  std::to_string(reply_.length()) + " bytes, and more were expected");
    }
    call.header = reply_.header;
    call.is_done = true;
  }

  bool fill(const Call& call) {
    uint64_t at = 0;
    for (const Out& out : call.outs) {
      if (at + out.bytes > reply_.length()) return false;
      if (out.bytes) std::memcpy(out.data, reply_.body() + at, out.bytes);
      at += aligned(out.bytes);
    }
    return true;
  }

  // Lets the server forget requests that wait. It is not repeated if it is lost.
  void say_goodbye() {
    Header bye;
    bye.op = Op::kBye;
    for (Way& way : ways_) {
      for (const auto& [request, asked] : way.calls) way.client.abandon(request);
      way.client.ask(bye, nullptr, Clock::now());
    }
    link_.flush();
  }

  void fail(const std::string& why) {
    if (broken_.empty()) broken_ = why;
    changed_.notify_all();
  }

  UdpLink link_;
  std::string server_;
  DatagramSettings settings_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::list<Way> ways_;
  uint64_t next_request_ = 1;
  bool is_reading_ = false;
  std::string broken_;
  Reply reply_;
};

}  // namespace

std::unique_ptr<Client> udp_client(const std::string& host, uint16_t port) {
  const UdpAddress address{host, port};
  try {
    return std::make_unique<UdpClient>(address);
  } catch (const std::runtime_error& error) {
    throw Gone("no replay server answers at " + std::string(error.what()));
  }
}

}  // namespace hocket
