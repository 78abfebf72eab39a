// Tests of messages in packets: over a network in memory that does to them whatever networks do.

#include <cstdlib>
#include <new>
#include <set>

#include "checks.h"
#include "network.h"

namespace {
size_t largest_allocation = 0;
}

[[gnu::noinline]] void* operator new(size_t bytes) {
  largest_allocation = std::max(largest_allocation, bytes);
  if (void* found = std::malloc(bytes)) return found;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace {

using namespace hocket;
using std::chrono::milliseconds;
using std::chrono::seconds;

// Lost, doubled, delayed, damaged, and no room to send.
constexpr Faults kAll = {0.1, 0.1, 0.2, 0.05, 0.05};
constexpr Faults kLost = {0.4, 0, 0, 0, 0}, kSilent = {1, 0, 0, 0, 0}, kDoubled = {0, 1, 0, 0, 0},
                 kDelayed = {0, 0, 1, 0, 0}, kDamaged = {0, 0, 0, 0.3, 0}, kFull = {0, 0, 0, 0, 0.5};

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// Whether a sample's rows are whole, and their keys and numbers agree with each other.
bool is_whole(const Reply& reply) {
  const uint64_t rows = reply.header.rows;
  const uint64_t before = aligned(rows * sizeof(Key)) + aligned(rows * sizeof(float));
  const uint64_t after = before + aligned(rows * sizeof(uint64_t));
  if (reply.length() != after + aligned(rows * kFill)) return false;
  const uint8_t* numbers = reply.body() + before;
  const uint8_t* fill = reply.body() + after;
  for (uint64_t r = 0; r < rows; ++r) {
    uint64_t number;
    std::memcpy(&number, numbers + r * sizeof(number), sizeof(number));
    for (uint64_t i = 0; i < kFill; ++i) {
      if (fill[r * kFill + i] != fill_at(number, i)) return false;
    }
  }
  return true;
}

std::multiset<uint64_t> numbers_in(Table& table) {
  const uint64_t n = table.size();
  std::vector<Key> keys(n);
  std::vector<float> chances(n), middle(n, 0.5f);
  std::vector<uint64_t> numbers(n);
  std::vector<uint8_t> fill(n * kFill);
  void* columns[] = {numbers.data(), fill.data()};
  Drawn drawn{keys.data(), chances.data(), columns};
  CHECK(table.sample(n, middle.data(), drawn).status == Status::kOk);
  return {numbers.begin(), numbers.end()};
}

// Several clients insert and sample, some of them several requests at a time. Each row is to be
// there once, and as many samples drawn as were asked for: neither more nor less.
void turmoil(Faults faults, uint64_t seed, size_t packet_bytes) {
  DatagramLimits limits;
  limits.packet_bytes = packet_bytes;
  World world(faults, seed, limits);
  DatagramSettings settings;
  settings.packet_bytes = packet_bytes;
  settings.patience = std::chrono::minutes(5);  // of these, some are unlucky for long
  std::vector<std::unique_ptr<Actor>> actors;
  for (uint64_t i = 0; i < 3; ++i) {
    actors.push_back(std::make_unique<Actor>(world, 10 + i, settings));
  }
  Random random(seed * 77);
  std::multiset<uint64_t> inserted;
  std::set<std::pair<uint32_t, uint32_t>> keys;
  uint64_t drawn = 0, next = 1, replies = 0, asked = 0;
  actors[0]->insert(next, 64);
  for (; next <= 64; ++next) inserted.insert(next);
  ++asked;
  while (asked < 150 || replies < asked) {
    for (auto& actor : actors) {
      while (asked < 150 && !actor->client.is_full() && random.next() % 3) {
        const uint32_t rows = 1 + random.next() % (random.next() % 8 ? 3 : 100);
        if (random.next() % 2) {
          actor->insert(next, rows);
          for (uint32_t r = 0; r < rows; ++r) inserted.insert(next++);
        } else {
          actor->sample(rows);
          drawn += rows;
        }
        ++asked;
      }
    }
    if (replies == asked) continue;
    Reply reply;
    const auto take = [&] {
      for (auto& actor : actors) {
        if (actor->client.take(reply)) return true;
      }
      return false;
    };
    CHECK(world.run(take));
    if (checks::failures) return;
    ++replies;
    CHECK(reply.header.code == Code::kOk);
    if (reply.header.op == Op::kSample) CHECK(is_whole(reply));
    if (reply.header.op != Op::kInsert) continue;
    CHECK(reply.length() == reply.header.rows * sizeof(Key));
    for (uint32_t r = 0; r < reply.header.rows; ++r) {
      Key key;
      std::memcpy(&key, reply.body() + r * sizeof(key), sizeof(key));
      CHECK(keys.emplace(key.slot, key.generation).second);
    }
  }
  const Counts counts = world.shared->table->counts();
  CHECK(counts.inserts == inserted.size() && keys.size() == inserted.size());
  CHECK(counts.samples == drawn);
  CHECK(numbers_in(*world.shared->table) == inserted);
  CHECK(world.desk->traffic.requests == asked);
}

TEST(each_request_is_carried_out_once) {
  for (const uint64_t seed : {1, 2, 3}) turmoil({}, seed, kPacketBytes);
  for (uint64_t seed = 1; seed <= 12; ++seed) turmoil(kAll, seed, kPacketBytes);
  turmoil(kAll, 20, kMostPacketBytes);
  for (uint64_t seed = 1; seed <= 4; ++seed) turmoil(kLost, seed, kPacketBytes);
  turmoil(kLost, 21, kPacketBytes);
  turmoil(kDoubled, 22, kPacketBytes);
  turmoil(kDelayed, 23, kPacketBytes);
  turmoil(kDamaged, 24, kPacketBytes);
  turmoil(kFull, 25, kPacketBytes);
}

TEST(a_quiet_network_needs_no_packet_twice) {
  World world;
  Actor actor(world, 10);
  Reply reply;
  actor.insert(1, 200);
  CHECK(actor.wait(reply));
  for (int i = 0; i < 20; ++i) {
    actor.sample(1 + 20 * i);
    CHECK(actor.wait(reply) && is_whole(reply));
  }
  CHECK(actor.client.sent_again() == 0 && world.desk->traffic.dropped == 0);
  // Two packets for what fits into one: nothing is said that need not be.
  const uint64_t before = world.network.delivered;
  actor.send(actor.header(Op::kInfo, 0));
  CHECK(actor.wait(reply) && reply.header.code == Code::kOk);
  CHECK(world.network.delivered == before + 2);
}

TEST(a_repeated_request_gets_the_same_reply) {
  World world;
  Actor actor(world, 10);
  Reply reply, again;
  actor.insert(1, 100);
  CHECK(actor.wait(reply));
  std::vector<std::vector<uint8_t>> replies;
  auto deliver = actor.end.deliver;
  actor.end.deliver = [&](const Peer&, const uint8_t* data, size_t size) {
    replies.emplace_back(data, data + size);  // kept from the client, which asks again
  };
  actor.sample(1);
  CHECK(world.run([&] { return replies.size() >= 6; }));
  CHECK(replies.size() == 6 && replies[0] == replies[2] && replies[1] == replies[5]);
  CHECK(actor.client.sent_again() == 2);
  CHECK(world.shared->table->counts().samples == 1);
}

TEST(nobody_sends_more_than_was_granted) {
  World world;
  DatagramSettings settings;
  settings.credit = 8;
  Actor actor(world, 10, settings);
  Reply reply;
  actor.insert(1, 100);
  CHECK(actor.wait(reply));
  // The client hears nothing: the server may send what it granted, and no more.
  auto deliver = actor.end.deliver;
  std::set<uint32_t> fragments;
  actor.end.deliver = [&](const Peer&, const uint8_t* data, size_t) {
    PacketHeader header;
    std::memcpy(&header, data, sizeof(header));
    fragments.insert(header.fragment);
  };
  actor.sample(50);
  CHECK(!world.run([] { return false; }, seconds(2)));
  CHECK(fragments.size() == 8 && *fragments.rbegin() == 7);
  actor.end.deliver = deliver;
  CHECK(actor.wait(reply) && is_whole(reply));
  // And of a request that nobody hears, what may be sent without being asked for.
  world.end.deliver = [](const Peer&, const uint8_t*, size_t) {};
  const uint64_t before = world.network.delivered;
  actor.insert(1000, 100);
  CHECK(!world.run([] { return false; }, milliseconds(10)));
  CHECK(world.network.delivered - before == kFirstCredit);
}

TEST(a_small_request_does_not_send_everything_at_once) {
  World world;
  DatagramSettings settings;
  settings.credit = UINT32_MAX;
  Actor actor(world, 10, settings);
  Reply reply;
  actor.insert(1, 1000);
  CHECK(actor.wait(reply));
  auto deliver = actor.end.deliver;
  std::set<uint32_t> fragments;
  actor.end.deliver = [&](const Peer&, const uint8_t* data, size_t) {
    PacketHeader header;
    std::memcpy(&header, data, sizeof(header));
    CHECK(header.fragments > 2 * kMostCredit);
    fragments.insert(header.fragment);
  };
  actor.sample(1000);
  CHECK(!world.run([] { return false; }, seconds(2)));
  CHECK(fragments.size() == kMostCredit);
  actor.end.deliver = deliver;
  CHECK(actor.wait(reply) && is_whole(reply));
}

TEST(a_late_packet_does_not_have_everything_sent_again) {
  World world;
  Actor actor(world, 10);
  Reply reply;
  actor.insert(1, 1000);
  CHECK(actor.wait(reply));
  std::vector<uint8_t> late;
  auto deliver = std::exchange(world.end.deliver, [&](const Peer&, const uint8_t* data, size_t n) {
    PacketHeader header;
    std::memcpy(&header, data, sizeof(header));
    if (header.kind == PacketKind::kProbe) late.assign(data, data + n);
  });
  actor.sample(1000);
  CHECK(world.run([&] { return !late.empty(); }));
  world.end.deliver = deliver;
  CHECK(actor.wait(reply) && is_whole(reply));
  CHECK(!world.run([] { return false; }, seconds(1)));
  const uint64_t before = world.network.delivered;
  deliver(actor.end.own, late.data(), late.size());
  CHECK(!world.run([] { return false; }, seconds(1)));
  CHECK(world.network.delivered - before == DatagramSettings().credit);
}

TEST(requests_wait_for_a_tables_limits) {
  World world(kAll, 5, {}, 1 << 14, {10});
  Actor learner(world, 10), actor(world, 11);
  Reply reply;
  learner.sample(2);
  CHECK(!world.run([&] { return learner.client.take(reply); }, seconds(30)));
  CHECK(world.desk->traffic.waiting == 1 && learner.client.under_way() == 1);
  actor.insert(1, 10);
  CHECK(actor.wait(reply) && reply.header.code == Code::kOk);
  CHECK(learner.wait(reply) && is_whole(reply));
  CHECK(world.desk->traffic.waiting == 0);
}

TEST(requests_wait_no_longer_than_they_say) {
  World world({}, 5, {}, 1 << 14, {10});
  Actor learner(world, 10);
  Reply reply;
  learner.sample(2, 1);
  CHECK(learner.wait(reply));
  CHECK(reply.header.code == Code::kTimeout && has(reply.text(), "10"));
}

TEST(a_server_that_is_silent_is_named) {
  World world(kSilent);
  DatagramSettings settings;
  settings.name = "udp://nowhere:1";
  settings.patience = seconds(3);
  Actor actor(world, 10, settings);
  Reply reply;
  const auto before = world.network.now();
  actor.insert(1, 3);
  CHECK(actor.wait(reply));
  CHECK(reply.header.code == Code::kClosed && reply.header.request == 1);
  CHECK(has(reply.text(), "udp://nowhere:1") && has(reply.text(), "3 s"));
  CHECK(world.network.now() - before < seconds(4));
  world.network.set_faults({});
  actor.insert(1, 3);  // and it goes on, once packets do
  CHECK(actor.wait(reply) && reply.header.code == Code::kOk);
  CHECK(world.shared->table->size() == 3);
}

TEST(a_client_that_was_forgotten_goes_on) {
  World world;
  Actor actor(world, 10);
  Reply reply;
  for (int i = 0; i < 3; ++i) {
    actor.insert(1 + i, 1);
    CHECK(actor.wait(reply));
  }
  CHECK(world.server->clients() == 1);
  CHECK(!world.run([] { return false; }, seconds(100)));
  CHECK(world.server->clients() == 0 && world.server->bytes() == 0);
  actor.insert(4, 1);
  actor.insert(5, 1);
  CHECK(actor.wait(reply) && reply.header.code == Code::kOk);
  CHECK(actor.wait(reply) && reply.header.code == Code::kOk);
  CHECK(numbers_in(*world.shared->table) == std::multiset<uint64_t>({1, 2, 3, 4, 5}));
}

TEST(an_insert_that_may_have_happened_is_not_repeated) {
  World world;
  Actor actor(world, 10);
  Reply reply;
  actor.insert(1, 1);
  CHECK(actor.wait(reply));
  auto deliver = std::exchange(actor.end.deliver, [](const Peer&, const uint8_t*, size_t) {});
  actor.insert(2, 1);  // carried out, but its reply is lost
  actor.sample(1);
  CHECK(!world.run([] { return false; }, milliseconds(100)));
  world.start();  // another server, which knows nobody
  actor.end.deliver = deliver;
  Reply first, second;
  CHECK(actor.wait(first) && actor.wait(second));
  if (first.header.op != Op::kInsert) std::swap(first, second);
  CHECK(first.header.op == Op::kInsert && first.header.code == Code::kClosed);
  CHECK(has(first.text(), "not known"));
  CHECK(second.header.op == Op::kSample && is_whole(second));
  CHECK(world.shared->table->size() == 2);
}

TEST(errors_come_back_and_the_server_goes_on) {
  World world;
  Actor actor(world, 10);
  Reply reply;
  Header wrong = actor.header(Op::kSample, 1);
  wrong.schema = 5;
  actor.send(wrong);
  CHECK(actor.wait(reply) && reply.header.code == Code::kBad && has(reply.text(), World::kSchema));
  actor.sample(100000, 0);
  CHECK(actor.wait(reply) && reply.header.code == Code::kBad && has(reply.text(), "too large"));
  actor.send(actor.header(static_cast<Op>(99), 1));
  CHECK(actor.wait(reply) && reply.header.code == Code::kBad);
  actor.send(actor.header(Op::kInfo, 0));
  CHECK(actor.wait(reply) && reply.header.code == Code::kOk && has(reply.text(), "refused 3"));
}

TEST(what_is_too_large_is_refused_before_there_is_room_for_it) {
  World world;
  Actor actor(world, 10);
  actor.send(actor.header(Op::kInsert, 1), std::vector<uint8_t>(9 << 20));
  largest_allocation = 0;
  Reply reply;
  CHECK(actor.wait(reply) && reply.header.code == Code::kBad);
  CHECK(has(reply.text(), "too large") && has(reply.text(), std::to_string((9 << 20) + sizeof(Header))));
  CHECK(largest_allocation < 100000);
  CHECK(world.server->clients() == 0 && world.server->bytes() == 0);
}

TEST(a_client_has_only_so_much_room) {
  DatagramLimits limits;
  limits.client_bytes = 400000;
  World world({}, 1, limits);
  Actor actor(world, 10);
  Reply reply;
  actor.insert(1, 100);
  CHECK(actor.wait(reply) && reply.header.code == Code::kOk);
  actor.sample(300);
  CHECK(actor.wait(reply) && reply.header.code == Code::kBad && has(reply.text(), "too large"));
  actor.sample(100);
  CHECK(actor.wait(reply) && is_whole(reply));
  CHECK(world.server->bytes() <= 400000);
}

TEST(there_are_only_so_many_clients) {
  DatagramLimits limits;
  limits.clients = 4;
  World world({}, 1, limits);
  std::vector<std::unique_ptr<Actor>> actors;
  Reply reply;
  for (uint64_t i = 0; i < 4; ++i) {
    actors.push_back(std::make_unique<Actor>(world, 10 + i));
    actors.back()->send(actors.back()->header(Op::kInfo, 0));
    CHECK(actors.back()->wait(reply));
  }
  CHECK(world.server->clients() == 4);
  actors.push_back(std::make_unique<Actor>(world, 20));
  actors.back()->send(actors.back()->header(Op::kInfo, 0));
  CHECK(actors.back()->wait(reply) && reply.header.code == Code::kClosed);
  CHECK(world.server->clients() == 4);
  actors[1]->send(actors[1]->header(Op::kBye, 0));
  CHECK(actors[1]->wait(reply) && reply.header.code == Code::kOk);
  actors.back()->send(actors.back()->header(Op::kInfo, 0));  // there is room again
  CHECK(actors.back()->wait(reply) && reply.header.code == Code::kOk);
  CHECK(world.server->clients() == 4);
}

TEST(memory_stays_as_it_is) {
  World world(kAll, 9);
  Actor actor(world, 10);
  Reply reply;
  // Each place for a request keeps a little room, and the last reply is kept.
  const uint64_t most = kMostUnderWay * 2 * 64 * 1024 + 50 * (kFill + 100);
  for (int i = 0; i < 300; ++i) {
    actor.insert(i * 10, 10);
    CHECK(actor.wait(reply));
    actor.sample(i % 50 + 1);
    CHECK(actor.wait(reply) && is_whole(reply));
    CHECK(world.server->bytes() <= most);
  }
  CHECK(world.server->clients() == 1);
}

}  // namespace

int main(int argc, char** argv) { return checks::run(argc, argv); }
