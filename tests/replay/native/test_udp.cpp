// Tests of packets over the kernel's UDP, on this machine's own addresses.

#include <arpa/inet.h>
#include <poll.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "checks.h"
#include "network.h"
#include "udp.h"

namespace {

using namespace hocket;
using std::chrono::milliseconds;
using std::chrono::seconds;

// A server in a thread, as an epoll loop would run it.
struct Serving {
  explicit Serving(const std::string& host = "127.0.0.1", const UdpOptions& options = {},
                   const DatagramLimits& limits = {})
      : udp(*world.desk, {host, 0}, options, limits), thread([this] { serve(); }) {}
  ~Serving() { stop(); }

  void stop() {
    stopped = true;
    if (thread.joinable()) thread.join();
  }

  void serve() {
    while (!stopped) {
      pollfd about = {udp.file(), POLLIN, 0};
      poll(&about, 1, 1);
      const auto now = Clock::now();
      udp.readable(now);
      if (world.desk->take_changed()) udp.retry(now);
      if (now >= udp.due()) udp.tick(now);
    }
  }

  World world;
  UdpListener udp;
  std::atomic<bool> stopped{false};
  std::thread thread;
};

Header header(Op op, uint32_t rows) {
  Header header;
  header.op = op;
  header.rows = rows;
  header.schema = schema_hash(World::kSchema);
  return header;
}

Reply call(DatagramChannel& channel, Header header, const std::vector<uint8_t>& body = {}) {
  header.length = body.size();
  channel.ask(header, body.data());
  Reply reply;
  CHECK(channel.receive(reply, Clock::now() + seconds(20)));
  return reply;
}

// Rows that are numbers, and bytes of which each is its place.
std::vector<uint8_t> rows_of(uint32_t rows) {
  std::vector<uint8_t> body(rows * (sizeof(uint64_t) + kFill));
  for (size_t i = 0; i < body.size(); ++i) body[i] = static_cast<uint8_t>(i * 31 >> 3);
  return body;
}

void round_trips(const std::string& host, const UdpOptions& options, size_t packet_bytes) {
  DatagramLimits limits;
  limits.packet_bytes = packet_bytes;
  Serving serving(host, options, limits);
  UdpLink link({host, serving.udp.port()}, options);
  DatagramSettings settings;
  settings.packet_bytes = packet_bytes;
  settings.credit = link.credit(packet_bytes);
  DatagramChannel channel(link, settings);
  const uint32_t rows = 500;
  const std::vector<uint8_t> body = rows_of(rows);
  CHECK(call(channel, header(Op::kInsert, rows), body).header.code == Code::kOk);
  // The whole table, one row after the other: what was inserted.
  std::vector<uint8_t> middle(rows * sizeof(float));
  for (uint32_t i = 0; i < rows; ++i) std::memcpy(&middle[i * 4], "\0\0\0\x3f", 4);
  Header sample = header(Op::kSample, rows);
  sample.flags = kHasNumbers;
  for (int i = 0; i < 20; ++i) {
    const Reply reply = call(channel, sample, middle);
    const size_t numbers = rows * sizeof(uint64_t), fill = rows * kFill;
    const size_t before = aligned(rows * sizeof(Key)) + aligned(rows * sizeof(float));
    CHECK(reply.length() == before + aligned(numbers) + aligned(fill));
    const uint8_t* found = reply.body() + before;
    CHECK(!std::memcmp(found, body.data(), numbers));
    CHECK(!std::memcmp(found + aligned(numbers), body.data() + numbers, fill));
  }
  serving.stop();
  CHECK(serving.world.shared->table->counts().inserts == rows);
  CHECK(serving.world.shared->table->counts().samples == 20 * rows);
  CHECK(serving.world.desk->traffic.dropped == 0);
}

TEST(messages_cross_the_kernel) {
  UdpOptions plain;
  plain.offload = false;
  round_trips("127.0.0.1", {}, kPacketBytes);
  round_trips("127.0.0.1", plain, kPacketBytes);
  round_trips("127.0.0.1", {}, kMostPacketBytes);
  round_trips("::1", {}, kPacketBytes);
}

TEST(several_requests_are_under_way_at_once) {
  Serving serving;
  UdpLink link({"127.0.0.1", serving.udp.port()});
  DatagramChannel channel(link, {});
  CHECK(call(channel, header(Op::kInsert, 50), rows_of(50)).header.code == Code::kOk);
  uint64_t asked = 0, answered = 0;
  Reply reply;
  while (answered < 200) {
    for (; asked < 200 && !channel.is_full(); ++asked) {
      Header sample = header(Op::kSample, 10);
      sample.request = asked;
      channel.ask(sample, nullptr);
    }
    CHECK(channel.receive(reply, Clock::now() + seconds(20)) && reply.header.code == Code::kOk);
    if (checks::failures) return;
    ++answered;
  }
  serving.stop();
  CHECK(serving.world.shared->table->counts().samples == 2000);
}

TEST(what_is_no_packet_is_dropped_and_counted) {
  Serving serving;
  const int file = socket(AF_INET, SOCK_DGRAM, 0);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(serving.udp.port());
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const uint8_t noise[100] = {1, 2, 3};
  for (const size_t size : {0, 1, 64, 100}) {
    CHECK(sendto(file, noise, size, 0, reinterpret_cast<sockaddr*>(&to), sizeof(to)) ==
          static_cast<ssize_t>(size));
  }
  UdpLink link({"127.0.0.1", serving.udp.port()});
  DatagramChannel channel(link, {});
  const Reply reply = call(channel, header(Op::kInfo, 0));
  CHECK(reply.text().find("dropped 4\n") != std::string::npos);
  uint8_t answer;
  CHECK(recv(file, &answer, 1, MSG_DONTWAIT) < 0);
  close(file);
}

TEST(who_is_not_there_is_named) {
  uint16_t port = 0;
  {
    Serving serving;
    port = serving.udp.port();
  }
  UdpLink link({"127.0.0.1", port});
  DatagramSettings settings;
  settings.name = "udp://127.0.0.1:" + std::to_string(port);
  settings.patience = milliseconds(300);
  DatagramChannel channel(link, settings);
  const auto before = Clock::now();
  const Reply reply = call(channel, header(Op::kInfo, 0));
  CHECK(reply.header.code == Code::kClosed && reply.text().find(settings.name) == 0);
  CHECK(Clock::now() - before < seconds(5));
}

TEST(an_address_that_is_none_is_refused) {
  std::string why;
  try {
    UdpLink link({"no.such.host.invalid", 1});
  } catch (const std::exception& error) {
    why = error.what();
  }
  CHECK(why.find("udp://no.such.host.invalid:1: ") == 0);
  Serving serving;
  try {
    UdpListener again(*serving.world.desk, {"127.0.0.1", serving.udp.port()});
    CHECK(false);
  } catch (const std::exception& error) {
    CHECK(std::string(error.what()).find("in use") != std::string::npos);
  }
}

}  // namespace

int main(int argc, char** argv) { return checks::run(argc, argv); }
