// Throws bytes at a server: random ones, damaged packets, and packets that are whole but tell
// nonsense. HOCKET_FUZZ_SECONDS says for how long; HOCKET_FUZZ_SEED where to begin.

#include <cstdlib>

#include "checks.h"
#include "network.h"

namespace {

using namespace hocket;

uint64_t setting(const char* name, uint64_t otherwise) {
  const char* found = std::getenv(name);
  return found ? std::strtoull(found, nullptr, 10) : otherwise;
}

struct Counted : PacketSink {
  uint64_t sent = 0;
  bool send(const Peer&, const PacketHeader&, const uint8_t*, size_t) override {
    ++sent;
    return true;
  }
};

class Thrower {
 public:
  explicit Thrower(uint64_t seed) : random_(seed) {}

  std::vector<uint8_t> noise(size_t size) {
    std::vector<uint8_t> bytes(size);
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random_.next());
    return bytes;
  }

  // Small numbers, large ones, and those around them.
  uint64_t number() {
    switch (random_.next() % 5) {
      case 0: return random_.next() % 4;
      case 1: return random_.next() % 100;
      case 2: return random_.next() % 10000;
      case 3: return UINT32_MAX - random_.next() % 3;
      default: return uint64_t{random_.next()} << 32 | random_.next();
    }
  }

  // One that a server takes for what it says.
  std::vector<uint8_t> packet() {
    PacketHeader header;
    header.kind = static_cast<PacketKind>(random_.next() % 10 ? 1 + random_.next() % 3 : random_.next());
    header.client = random_.next() % 40;
    header.request = random_.next() % 3 ? 1 + random_.next() % 20 : number();
    header.behind = static_cast<uint16_t>(random_.next() % 2 ? header.request - 1 : number());
    header.credit = static_cast<uint32_t>(number());
    std::vector<uint8_t> payload;
    if (header.kind == PacketKind::kMore) {
      payload = noise(8 * (random_.next() % 70));
      for (size_t i = 0; i + 4 <= payload.size(); i += 4) {
        const auto value = static_cast<uint32_t>(number());
        std::memcpy(payload.data() + i, &value, 4);
      }
      header.length = static_cast<uint32_t>(payload.size());
    } else {
      message(header, payload);
    }
    if (random_.next() % 10 == 0) header.length = static_cast<uint32_t>(number());
    if (random_.next() % 10 == 0) header.fragments = static_cast<uint32_t>(number());
    header.check = packet_check(header, payload.data(), payload.size());
    std::vector<uint8_t> bytes(sizeof(header) + payload.size());
    std::memcpy(bytes.data(), &header, sizeof(header));
    std::copy(payload.begin(), payload.end(), bytes.begin() + sizeof(header));
    return bytes;
  }

  Random& random() { return random_; }

 private:
  // A fragment, with the header of a request in the first.
  void message(PacketHeader& header, std::vector<uint8_t>& payload) {
    header.fragments = random_.next() % 2 ? 1 : 1 + random_.next() % 6;
    header.fragment = random_.next() % header.fragments;
    header.stride = static_cast<uint16_t>(header.fragments == 1 ? 64 + random_.next() % 100
                                                                : 512 + random_.next() % 3);
    const uint32_t last = 1 + random_.next() % header.stride;
    header.length = (header.fragments - 1) * header.stride + last;
    payload = noise(header.fragment + 1 == header.fragments ? last : header.stride);
    if (header.fragment || payload.size() < sizeof(Header)) return;
    Header asks;
    asks.op = static_cast<Op>(random_.next() % 12);
    asks.rows = static_cast<uint32_t>(random_.next() % 2 ? random_.next() % 8 : number());
    asks.flags = random_.next() % 4;
    asks.table = static_cast<uint16_t>(random_.next() % 8 ? 0 : number());
    asks.schema = random_.next() % 8 ? schema_hash(World::kSchema) : number();
    asks.timeout_ms = random_.next() % 3;
    asks.length = random_.next() % 8 ? header.length - sizeof(Header) : number();
    if (random_.next() % 20 == 0) asks.magic = random_.next();
    std::memcpy(payload.data(), &asks, sizeof(asks));
  }

  Random random_;
};

TEST(a_server_outlives_whatever_comes) {
  Counted sink;
  DatagramLimits limits;
  limits.clients = 20;
  limits.client_bytes = 1 << 16;
  World world({}, 1, limits, 256);
  DatagramServer server(*world.desk, sink, limits);
  Thrower thrower(setting("HOCKET_FUZZ_SEED", 1));
  const auto end = Clock::now() + std::chrono::seconds(setting("HOCKET_FUZZ_SECONDS", 2));
  Clock::time_point now = world.network.now();
  uint64_t thrown = 0;
  for (; Clock::now() < end; ++thrown) {
    std::vector<uint8_t> bytes = thrower.packet();
    if (thrown % 4 == 1) bytes = thrower.noise(thrower.random().next() % 2000);
    if (thrown % 4 == 2 && !bytes.empty()) bytes[thrower.random().next() % bytes.size()] ^= 1;
    if (thrown % 16 == 3) bytes.resize(thrower.random().next() % (bytes.size() + 1));
    const std::unique_ptr<uint8_t[]> exact(new uint8_t[bytes.size()]);
    std::copy(bytes.begin(), bytes.end(), exact.get());
    server.packet(Peer(), exact.get(), bytes.size(), now);
    now += std::chrono::milliseconds(thrower.random().next() % 20);
    if (thrown % 8 == 0) server.tick(now);
    if (world.desk->take_changed()) server.retry(now);
    CHECK(server.clients() <= limits.clients && server.bytes() <= 20 * ((1 << 16) + 16 * 1024));
    if (checks::failures) break;
  }
  std::printf("%lu packets thrown, %lu dropped, %lu answers\n", thrown,
              world.desk->traffic.dropped, sink.sent);
  CHECK(sink.sent > 0 && world.desk->traffic.dropped > thrown / 4);
  // The table is as good as before.
  CHECK(world.shared->table->insert(0, nullptr, nullptr, nullptr).status != Status::kWait);
  const Counts counts = world.shared->table->counts();
  CHECK(counts.size <= 256 && counts.inserts >= counts.size);
}

TEST(noise_is_never_answered) {
  Counted sink;
  World world;
  DatagramServer server(*world.desk, sink);
  Thrower thrower(setting("HOCKET_FUZZ_SEED", 1));
  constexpr uint64_t kThrown = 20000;
  for (uint64_t i = 0; i < kThrown; ++i) {
    const std::vector<uint8_t> bytes = thrower.noise(thrower.random().next() % 1500);
    server.packet(Peer(), bytes.data(), bytes.size(), world.network.now());
  }
  // One bit of a packet that would be answered is another.
  PacketHeader header;
  header.request = header.credit = 1;
  header.fragments = 1;
  header.stride = header.length = sizeof(Header);
  Header asks;
  const auto* payload = reinterpret_cast<const uint8_t*>(&asks);
  header.check = packet_check(header, payload, sizeof(asks));
  std::vector<uint8_t> whole(sizeof(header) + sizeof(asks));
  std::memcpy(whole.data(), &header, sizeof(header));
  std::memcpy(whole.data() + sizeof(header), payload, sizeof(asks));
  for (size_t bit = 0; bit < whole.size() * 8; ++bit) {
    whole[bit / 8] ^= static_cast<uint8_t>(1 << (bit % 8));
    server.packet(Peer(), whole.data(), whole.size(), world.network.now());
    whole[bit / 8] ^= static_cast<uint8_t>(1 << (bit % 8));
  }
  CHECK(sink.sent == 0 && server.clients() == 0 && server.bytes() == 0);
  CHECK(world.desk->traffic.dropped == kThrown + whole.size() * 8);
  server.packet(Peer(), whole.data(), whole.size(), world.network.now());
  CHECK(sink.sent == 1);
}

}  // namespace

int main(int argc, char** argv) { return checks::run(argc, argv); }
