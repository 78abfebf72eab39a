// Tests of the replay service: random and mutated messages, and clients in many threads.
//
// A plain program: `test_service [part of a name]` runs the tests, and returns 1 if a check fails.
// HOCKET_FUZZ_SECONDS is how long each kind of nonsense goes on.

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "checks.h"
#include "client.h"
#include "mapped.h"
#include "server.h"
#include "stream.h"

using namespace hocket;

namespace {

double fuzz_seconds() {
  const char* found = std::getenv("HOCKET_FUZZ_SECONDS");
  return found ? std::atof(found) : 1.0;
}

bool within(Clock::time_point end) { return Clock::now() < end; }

constexpr char kSchema[] = "x:float32:2 y:int32", kFrames[] = "f:uint8:5*2 z:int8";
constexpr uint64_t kMost = 1 << 16;

// Two tables, the second of frames and with limits.
std::vector<Served> served() {
  Options plain, frames;
  plain.capacity = 20;
  plain.columns = {{8, 0}, {4, 0}};
  frames.capacity = 5;
  frames.columns = {{5, 2}, {1, 0}};
  frames.num_frames = 7;
  frames.limits = {2, 1.0, -4.0, 8.0};
  return {{"plain", kSchema, std::make_shared<Shared>(std::make_unique<Table>(plain)), "", ""},
          {"frames", kFrames, std::make_shared<Shared>(std::make_unique<Table>(frames)), "", ""}};
}

using Bytes = std::vector<uint8_t>;

class Nonsense {
 public:
  explicit Nonsense(uint64_t seed) : random_(seed) {}

  uint64_t below(uint64_t most) { return random_() % most; }
  bool rarely() { return below(20) == 0; }

  uint64_t number() {
    static constexpr uint64_t kOdd[] = {0,       1,          2,          63,        64,
                                        65,      4095,       4096,       kMost,     kMost + 1,
                                        1 << 20, UINT32_MAX, 1ULL << 32, 1ULL << 60, UINT64_MAX};
    return below(3) ? below(40) : kOdd[below(sizeof(kOdd) / sizeof(kOdd[0]))];
  }

  Bytes bytes(uint64_t count) {
    Bytes found(count);
    for (uint8_t& byte : found) byte = static_cast<uint8_t>(below(3) ? below(4) : random_());
    return found;
  }

  // Mostly right, and then perhaps changed somewhere.
  Bytes message() {
    Header header;
    header.op = static_cast<Op>(below(14));
    if (header.op == Op::kBye && below(10)) header.op = Op::kSample;
    header.table = static_cast<uint16_t>(below(2));
    header.schema = schema_hash(header.table ? kFrames : kSchema);
    header.rows = static_cast<uint32_t>(below(6));
    header.request = below(50);
    header.flags = static_cast<uint32_t>(below(2));
    header.timeout_ms = static_cast<uint32_t>(below(3));
    const uint64_t numbers = header.flags ? 4 * header.rows : 0;
    uint64_t length = 0;
    switch (header.op) {
      case Op::kInsert: length = numbers + header.rows * (header.table ? 17 : 12); break;
      case Op::kSample: length = numbers; break;
      case Op::kUpdate: length = 12 * header.rows; break;
      case Op::kFrames: length = header.rows * (header.table ? 5 : 0); break;
      case Op::kMap: length = sizeof(Region); break;
      default: break;
    }
    const Bytes body = bytes(length);
    header.length = rarely() ? number() : length;
    if (rarely()) header.rows = static_cast<uint32_t>(number());
    if (rarely()) header.table = static_cast<uint16_t>(number());
    if (rarely()) header.timeout_ms = static_cast<uint32_t>(number());
    if (rarely()) header.version = static_cast<uint16_t>(number());
    Bytes found(sizeof(header));
    std::memcpy(found.data(), &header, sizeof(header));
    found.insert(found.end(), body.begin(), body.end());
    if (rarely()) found[below(found.size())] ^= static_cast<uint8_t>(1 << below(8));
    if (rarely()) found.resize(below(found.size()));
    return found;
  }

 private:
  std::mt19937_64 random_;
};

// That the desk still does what it should.
void check_right(Desk& desk) {
  struct Kept : Outbox {
    Bytes bytes;
    uint8_t* room(uint64_t count) override {
      bytes.resize(count);
      return bytes.data();
    }
  } kept;
  const auto ask = [&](Op op, uint32_t rows, const Bytes& body) {
    Header header;
    header.op = op;
    header.rows = rows;
    header.schema = schema_hash(kSchema);
    header.length = body.size();
    Pending pending;
    CHECK(desk.answer(header, body.data(), pending, kept) == Outcome::kReplied);
    std::memcpy(&header, kept.bytes.data(), sizeof(header));
    CHECK(header.length + sizeof(header) == kept.bytes.size());
    return header;
  };
  CHECK(ask(Op::kReset, 0, {}).code == Code::kOk);
  CHECK(ask(Op::kSample, 1, {}).code == Code::kTimeout);
  CHECK(ask(Op::kInsert, 1, {0, 0, 0x80, 0x3f, 0, 0, 0, 0x40, 7, 0, 0, 0}).code == Code::kOk);
  const Header drawn = ask(Op::kSample, 3, {});
  CHECK(drawn.code == Code::kOk && drawn.size == 1 && drawn.length == 4 * 64);
  float x[2];
  std::memcpy(x, kept.bytes.data() + sizeof(Header) + 2 * 64 + 2 * sizeof(x), sizeof(x));
  CHECK(x[0] == 1.0f && x[1] == 2.0f);
}

TEST(random_bytes_and_mutated_messages_over_a_stream) {
  Desk desk(served(), kMost);
  const auto end = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                      std::chrono::duration<double>(fuzz_seconds()));
  uint64_t kept = 0, ended = 0, mapped = 0;
  for (uint64_t seed = 0; seed < 100 || within(end); ++seed) {
    Nonsense nonsense(seed);
    int files[2];
    CHECK(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, files));
    {
      Stream stream(desk, files[0], [&](const Region& region, int memory, int bell) {
        ++mapped;
        try {
          Mapped made(desk, region, memory, bell);
        } catch (const std::runtime_error& error) {
          return std::string(error.what());
        }
        return std::string();
      });
      bool keep = true;
      for (uint64_t i = nonsense.below(60) + 1; i && keep; --i) {
        const Bytes sent = nonsense.below(30) ? nonsense.message() : nonsense.bytes(100);
        msghdr message{};
        iovec part{const_cast<uint8_t*>(sent.data()), sent.size()};
        message.msg_iov = &part;
        message.msg_iovlen = 1;
        alignas(cmsghdr) char control[CMSG_SPACE(2 * sizeof(int))] = {};
        const int memory = memfd_create("fuzz", MFD_ALLOW_SEALING);
        CHECK(!ftruncate(memory, static_cast<off_t>(nonsense.below(1 << 16))));
        fcntl(memory, F_ADD_SEALS, F_SEAL_SHRINK);
        const int both[2] = {memory, memory};
        if (nonsense.below(2) && !sent.empty()) {
          message.msg_control = control;
          message.msg_controllen = sizeof(control);
          cmsghdr* about = CMSG_FIRSTHDR(&message);
          about->cmsg_level = SOL_SOCKET;
          about->cmsg_type = SCM_RIGHTS;
          about->cmsg_len = CMSG_LEN(sizeof(both));
          std::memcpy(CMSG_DATA(about), both, sizeof(both));
        }
        if (sendmsg(files[1], &message, MSG_NOSIGNAL) < 0) keep = false;
        close(memory);
        keep = keep && stream.readable() && stream.retry();
        if (nonsense.below(3)) continue;  // replies pile up
        uint8_t replies[4096];
        while (recv(files[1], replies, sizeof(replies), MSG_DONTWAIT) > 0) {
        }
        keep = keep && stream.writable();
      }
      ++(keep && stream.ending_since() == Clock::time_point::max() ? kept : ended);
    }
    close(files[1]);
    CHECK(desk.traffic.waiting == 0);
    check_right(desk);
  }
  CHECK(kept && ended && mapped);
  CHECK(desk.traffic.refused > 100 && desk.traffic.requests > desk.traffic.refused);
}

TEST(random_and_changing_shared_memory) {
  Desk desk(served(), kMost);
  const auto end = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                      std::chrono::duration<double>(fuzz_seconds()));
  uint64_t answered = 0;
  for (uint64_t seed = 0; seed < 100 || within(end); ++seed) {
    Nonsense nonsense(seed);
    const Region region{64 + nonsense.below(1000), 4096 + nonsense.below(1000),
                        static_cast<uint32_t>(1 + nonsense.below(64)), 0};
    const int memory = memfd_create("fuzz", MFD_ALLOW_SEALING);
    CHECK(!ftruncate(memory, static_cast<off_t>(region_bytes(region))));
    fcntl(memory, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW);
    void* base =
        mmap(nullptr, region_bytes(region), PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
    auto* head = static_cast<RegionHead*>(base);
    {
      Mapped mapped(desk, region, memory, eventfd(0, 0));
      for (int i = 0; i < 100; ++i) {
        const auto slot = static_cast<uint32_t>(nonsense.below(region.slots));
        Bytes message = nonsense.message();
        message.resize(std::min<size_t>(message.size(), region.request_bytes));
        if (!message.empty()) {
          std::memcpy(request_at(base, region, slot), message.data(), message.size());
        }
        const uint64_t at = head->head.load();
        head->ring[at % kMostSlots] =
            nonsense.rarely() ? static_cast<uint32_t>(nonsense.number()) : slot;
        head->head = nonsense.rarely() ? nonsense.number() : at + 1;
        if (nonsense.rarely()) head->lines[slot].state = static_cast<uint32_t>(nonsense.below(5));
        if (nonsense.rarely()) head->lines[slot].answered.waiting = 1;
        if (nonsense.below(2)) {
          for (int k = 0; k < 70 && mapped.poll(); ++k) {
          }
        }
        if (nonsense.below(2)) mapped.retry();
        answered += head->lines[slot].state == kAnswered;
        if (nonsense.rarely()) {
          const Bytes noise = nonsense.bytes(region_bytes(region));
          std::memcpy(base, noise.data(), noise.size());
        }
      }
    }
    munmap(base, region_bytes(region));
    CHECK(desk.traffic.waiting == 0);
    check_right(desk);
  }
  CHECK(answered > 100 && desk.traffic.dropped > 10);
}

// What a client finds may change while the server reads it.
TEST(memory_that_changes_while_it_is_read) {
  Desk desk(served(), kMost);
  const Region region{4096, 8192, 4, 0};
  const int memory = memfd_create("fuzz", MFD_ALLOW_SEALING);
  CHECK(!ftruncate(memory, static_cast<off_t>(region_bytes(region))));
  fcntl(memory, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW);
  void* base = mmap(nullptr, region_bytes(region), PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
  auto* head = static_cast<RegionHead*>(base);
  std::atomic<bool> done{false};
  const auto writer = [&](uint64_t seed) {
    Nonsense nonsense(seed);
    while (!done) {
      const Bytes message = nonsense.message();
      const auto slot = static_cast<uint32_t>(nonsense.below(4));
      auto* to = reinterpret_cast<std::atomic<uint8_t>*>(request_at(base, region, slot));
      for (size_t i = 0; i < message.size(); ++i) to[i].store(message[i], std::memory_order_relaxed);
      head->ring[nonsense.below(kMostSlots)] = slot;
      head->head.fetch_add(1);
    }
  };
  {
    Mapped mapped(desk, region, memory, eventfd(0, 0));
    std::thread one(writer, 1), other(writer, 2);
    const auto end = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                        std::chrono::duration<double>(fuzz_seconds()));
    while (desk.traffic.requests < 1000 || within(end)) {
      mapped.poll();
      mapped.retry();
    }
    done = true;
    one.join();
    other.join();
  }
  check_right(desk);
  munmap(base, region_bytes(region));
}

// Of a server with real clients

struct Running {
  Server server;
  std::string path;
  uint16_t port, udp_port;
  std::thread thread;

  explicit Running(std::vector<Served> tables, ServerOptions options = {})
      : server(std::move(tables), options),
        path("/tmp/hocket-test-" + std::to_string(getpid())),
        port((server.listen_unix(path), server.listen_tcp("127.0.0.1", 0))),
        udp_port(server.listen_udp("127.0.0.1", 0)),
        thread([this] { server.run(); }) {}
  ~Running() {
    server.stop();
    if (thread.joinable()) thread.join();
  }

  std::unique_ptr<Client> client(int carrier) const {
    if (carrier == 0) {
      return std::make_unique<SharedClient>(StreamClient::unix_socket(path), 4, 30.0);
    }
    if (carrier == 1) return StreamClient::unix_socket(path);
    if (carrier == 3) return udp_client("127.0.0.1", udp_port);
    return StreamClient::tcp("127.0.0.1", port, 30.0);
  }
};

constexpr int kCarriers = 4;
constexpr uint32_t kRowBytes = 1000;
constexpr char kBytes[] = "x:uint8:1000";

std::vector<Served> one_table(Limits limits = {}) {
  Options options;
  options.capacity = 1000;
  options.columns = {{kRowBytes, 0}};
  options.limits = limits;
  return {{"t", kBytes, std::make_shared<Shared>(std::make_unique<Table>(options)), "", ""}};
}

Call request(Op op, uint32_t rows, uint32_t timeout_ms = kForever) {
  Call call;
  call.header.op = op;
  call.header.rows = rows;
  call.header.schema = schema_hash(kBytes);
  call.header.timeout_ms = timeout_ms;
  return call;
}

void finish(Client& client, Call& call) { CHECK(client.wait(call, Clock::time_point::max())); }

Code insert(Client& client, uint32_t rows, uint8_t value) {
  const Bytes data(rows * kRowBytes, value);
  std::vector<Key> keys(rows);
  Call call = request(Op::kInsert, rows);
  call.outs = {{keys.data(), rows * sizeof(Key)}};
  client.ask(call, {{data.data(), data.size()}});
  finish(client, call);
  return call.header.code;
}

// All bytes of a row are the same.
void check_rows(const uint8_t* data, uint32_t rows) {
  for (uint32_t i = 0; i < rows; ++i) {
    CHECK(data[i * kRowBytes] == data[i * kRowBytes + kRowBytes / 2] &&
          data[i * kRowBytes] == data[i * kRowBytes + kRowBytes - 1]);
  }
}

Code sample(Client& client, uint32_t rows) {
  Bytes data(rows * kRowBytes);
  std::vector<Key> keys(rows);
  std::vector<float> chances(rows);
  Call call = request(Op::kSample, rows);
  call.outs = {{keys.data(), rows * sizeof(Key)},
               {chances.data(), rows * sizeof(float)},
               {data.data(), data.size()}};
  client.ask(call, {});
  finish(client, call);
  if (call.header.code == Code::kOk) check_rows(data.data(), rows);
  return call.header.code;
}

// Where the server wrote them.
void sample_in_place(Client& client, uint32_t rows) {
  Call call = request(Op::kSample, rows);
  const uint64_t begin = aligned(rows * sizeof(Key)) + aligned(rows * sizeof(float));
  call.reply_bytes = begin + aligned(rows * kRowBytes);
  client.ask(call, {});
  finish(client, call);
  CHECK(call.header.code == Code::kOk && call.body);
  if (!call.body) return;
  check_rows(call.body + begin, rows);
  client.release(call);
}

void work(Client& client, int which, int rounds) {
  for (int i = 0; i < rounds; ++i) {
    CHECK(insert(client, 1 + static_cast<uint32_t>(i % 7), static_cast<uint8_t>(which)) ==
          Code::kOk);
    CHECK(sample(client, 1 + static_cast<uint32_t>(i * 13 % 60)) == Code::kOk);
    if (client.may_stay()) sample_in_place(client, 20);
    Call asked = request(Op::kSample, 5);
    std::vector<Key> keys(5);
    std::vector<float> chances(5);
    Bytes data(5 * kRowBytes);
    asked.outs = {{keys.data(), 40}, {chances.data(), 20}, {data.data(), data.size()}};
    client.ask(asked, {});
    if (i % 2) {
      client.abandon(asked);
    } else {
      finish(client, asked);
    }
    Call info = request(Op::kInfo, 0);
    client.ask(info, {});
    finish(client, info);
    CHECK(info.text.rfind("size ", 0) == 0);
  }
}

TEST(threads_and_clients_on_all_carriers) {
  Running running(one_table());
  CHECK(insert(*running.client(1), 10, 0) == Code::kOk);
  std::vector<std::unique_ptr<Client>> clients;
  for (int carrier = 0; carrier < kCarriers; ++carrier) clients.push_back(running.client(carrier));
  std::vector<std::thread> threads;
  for (int i = 0; i < 3 * kCarriers; ++i) {
    threads.emplace_back([&, i] { work(*clients[static_cast<size_t>(i % kCarriers)], i, 60); });
  }
  threads.emplace_back([&] {
    for (int i = 0; i < 30; ++i) work(*running.client(i % kCarriers), 100, 2);
  });
  for (std::thread& thread : threads) thread.join();
}

// They wait for each other over the same connection.
TEST(threads_of_one_client_that_wait) {
  for (int carrier = 0; carrier < kCarriers; ++carrier) {
    Running running(one_table({1, 1.0, -20.0, 20.0}));
    const auto client = running.client(carrier);
    std::vector<std::thread> threads;
    for (int i = 0; i < 3; ++i) {
      threads.emplace_back([&] {
        for (int k = 0; k < 60; ++k) CHECK(insert(*client, 2, 1) == Code::kOk);
      });
      threads.emplace_back([&] {
        for (int k = 0; k < 30; ++k) CHECK(sample(*client, 4) == Code::kOk);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
}

// Whatever they do then: they get an error, and nobody writes to memory that is gone.
TEST(closing_while_threads_are_at_it) {
  // Over UDP nobody is told that a server is gone, which takes its clients 5 s: once.
  for (int round = 0; round < 14; ++round) {
    Running running(one_table());
    const auto client = running.client(round < 12 ? round % 3 : 3);
    CHECK(insert(*client, 100, 3) == Code::kOk);
    std::vector<std::thread> threads;
    std::atomic<int> begun{0}, ended{0};
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&, i] {
        try {
          for (;; ++begun) i ? sample(*client, 900) : insert(*client, 100, 4);
        } catch (const Gone&) {
          ++ended;
        }
      });
    }
    while (begun < 8) std::this_thread::yield();
    if (round % 2) {
      client->close();
    } else {
      running.server.stop();
      running.thread.join();
      running.server.end();
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(ended == 4);
  }
}

TEST(saving_in_threads) {
  auto tables = one_table();
  tables[0].snapshot = "/tmp/hocket-test-" + std::to_string(getpid()) + ".replay";
  tables[0].tally = tables[0].snapshot + ".inserts";
  const std::string snapshot = tables[0].snapshot, tally = tables[0].tally;
  {
    Running running(std::move(tables));
    CHECK(insert(*running.client(0), 1000, 3) == Code::kOk);
    std::vector<std::thread> threads;
    std::atomic<int> saved{0};
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&, i] {
        const auto client = running.client(i % 3);
        for (int k = 0; k < 10; ++k) {
          Call call = request(Op::kSave, 0);
          client->ask(call, {});
          finish(*client, call);
          saved += call.header.code == Code::kOk;
          insert(*client, 5, 7);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(saved > 0);
    CHECK(restore(snapshot).table->size() == 1000);
  }
  unlink(snapshot.c_str());
  unlink(tally.c_str());
}

}  // namespace

int main(int argc, char** argv) { return checks::run(argc, argv); }
