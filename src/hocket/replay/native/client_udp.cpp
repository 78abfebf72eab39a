#include <algorithm>
#include <cstring>
#include <thread>

#include "client.h"
#include "udp.h"

namespace hocket {
namespace {

constexpr auto kSlice = std::chrono::milliseconds(2);  // after which others may ask

class UdpClient final : public Client {
 public:
  explicit UdpClient(const UdpAddress& address)
      : link_(address), channel_(link_, settings(address, link_)) {}

  void ask(Call& call, const std::vector<In>& parts) override {
    call.header.length = 0;
    for (const In& part : parts) call.header.length += part.bytes;
    std::vector<uint8_t> body(call.header.length);
    uint8_t* to = body.data();
    for (const In& part : parts) {
      if (part.bytes) std::memcpy(to, part.data, part.bytes);
      to += part.bytes;
    }
    ++asking_;
    std::unique_lock<std::mutex> alone(mutex_);
    --asking_;
    while (broken_.empty() && channel_.is_full()) receive(Clock::now() + kSlice);
    if (!broken_.empty()) throw Gone(broken_);
    call.header.request = next_request_++;
    calls_[call.header.request] = &call;
    channel_.ask(call.header, body.data());
  }

  bool wait(Call& call, Clock::time_point until) override {
    while (true) {
      while (asking_) std::this_thread::yield();
      std::unique_lock<std::mutex> alone(mutex_);
      if (call.is_done) return true;
      if (!broken_.empty()) throw Gone(broken_);
      receive(std::min(until, Clock::now() + kSlice));
      if (call.is_done) return true;
      if (Clock::now() >= until) return false;
    }
  }

  void abandon(Call& call) override {
    const std::lock_guard<std::mutex> alone(mutex_);
    if (!call.is_done) calls_.erase(call.header.request);
  }

  void close() override {
    const std::lock_guard<std::mutex> alone(mutex_);
    if (broken_.empty()) broken_ = "this connection to the replay server was closed";
  }

 private:
  static DatagramSettings settings(const UdpAddress& address, const UdpLink& link) {
    DatagramSettings found;
    found.name = "the replay server at udp://" + address.host + ":" + std::to_string(address.port);
    found.credit = link.credit(found.packet_bytes);
    return found;
  }

  void receive(Clock::time_point until) {
    Reply reply;
    if (!channel_.receive(reply, until)) return;
    const auto found = calls_.find(reply.header.request);
    if (found == calls_.end()) return;  // nobody waits for it any more
    Call& call = *found->second;
    calls_.erase(found);
    if (reply.header.code == Code::kClosed) {
      broken_ = reply.text();
      return;
    }
    call.header = reply.header;
    if (reply.header.code == Code::kOk && !call.outs.empty()) {
      fill(call, reply);
    } else {
      call.text = reply.text();
    }
    call.is_done = true;
  }

  void fill(Call& call, const Reply& reply) {
    uint64_t at = 0;
    for (const Out& out : call.outs) {
      if (at + out.bytes > reply.length()) {
        broken_ = "a reply of the replay server has " + std::to_string(reply.length()) +
                  " bytes, and more were expected";
        return;
      }
      if (out.bytes) std::memcpy(out.data, reply.body() + at, out.bytes);
      at += aligned(out.bytes);
    }
  }

  UdpLink link_;
  DatagramChannel channel_;
  std::mutex mutex_;
  std::atomic<int> asking_{0};
  std::map<uint64_t, Call*> calls_;
  uint64_t next_request_ = 1;
  std::string broken_;
};

}  // namespace

std::unique_ptr<Client> udp_client(const std::string& host, uint16_t port) {
  try {
    return std::make_unique<UdpClient>(UdpAddress{host, port});
  } catch (const Gone&) {
    throw;
  } catch (const std::runtime_error& error) {
    throw Gone(error.what());
  }
}

}  // namespace hocket
