// hocket-replay-load: sends requests to a replay server one after another, and measures their
// times.
//
// It reads lines `OPERATION ROWS COUNT`, or `OPERATION ROWS SECONDSs`, and answers each with a line
// of JSON that has the microseconds of a round trip. Operations are insert, sample, update and
// info. With DPDK there are also ping (ROWS is the bytes of the frame) and noise (invalid packets,
// which get no answer).

#include <algorithm>
#include <cstdio>
#include <functional>
#include <iostream>
#include <memory>
#include <sstream>
#include <vector>

#include "../datagram_client.h"
#include "../random.h"
#include "../udp.h"
#include "flags.h"
#include "frame.h"
#include "idle.h"
#include "stream_caller.h"
#include "tables.h"
#include "way.h"

namespace hocket {
namespace {

using Ask = std::function<void(const Header& header, const uint8_t* body, Reply& reply)>;

// How many times, or for how long.
struct Much {
  uint64_t count = 1;
  Clock::time_point end = Clock::time_point::max();

  explicit Much(const std::string& text) {
    if (text.empty()) return;
    if (text.back() != 's') {
      count = parse_number("COUNT", text);
      return;
    }
    const double seconds = parse_real("SECONDS", text.substr(0, text.size() - 1));
    count = UINT64_MAX;
    end = Clock::now() +
          std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  }
  bool has_more(uint64_t done) const { return done < count && Clock::now() < end && !stopping; }
};

struct LoadFlags {
  std::string carrier = "dpdk", address, server, schema;
  uint64_t spin_us = 0, packet_bytes = kPacketBytes, credit = 64;
  bool plain = false;
  EalOptions eal;
};

Ask over(DatagramChannel& channel) {
  return [&channel](const Header& header, const uint8_t* body, Reply& reply) {
    channel.ask(header, body);
    while (!channel.receive(reply, Clock::now() + std::chrono::seconds(1))) {
      if (stopping) throw std::runtime_error("stopped");
    }
  };
}

class Load {
 public:
  Load(Ask ask, const std::string& schema) : ask_(std::move(ask)), hash_(schema_hash(schema)) {
    for (const Column& column : parse_schema(schema)) row_bytes_ += column.bytes;
  }

  // Returns the microseconds of each call.
  std::vector<double> run(const std::string& operation, uint32_t rows, const Much& much) {
    Header header;
    header.schema = hash_;
    header.rows = rows;
    header.timeout_ms = 1000;
    std::vector<uint8_t> body;
    if (operation == "insert") {
      header.op = Op::kInsert;
      header.flags = kHasNumbers;
      body = priorities(rows);
      body.resize(body.size() + rows * row_bytes_, 7);
    } else if (operation == "sample") {
      header.op = Op::kSample;
    } else if (operation == "update") {
      header.op = Op::kUpdate;
      body = keys(rows);
      const std::vector<uint8_t> numbers = priorities(rows);
      body.insert(body.end(), numbers.begin(), numbers.end());
    } else if (operation == "info") {
      header.op = Op::kInfo;
    } else {
      throw std::invalid_argument("there is no operation `" + operation +
                                  "`: there are insert, sample, update, info, ping and noise");
    }
    std::vector<double> times;
    while (much.has_more(times.size())) {
      const Clock::time_point before = Clock::now();
      call(header, body);
      times.push_back(std::chrono::duration<double, std::micro>(Clock::now() - before).count());
    }
    return times;
  }

 private:
  void call(Header header, const std::vector<uint8_t>& body) {
    header.length = body.size();
    header.request = ++requests_;
    ask_(header, body.data(), reply_);
    if (reply_.header.code != Code::kOk) throw std::runtime_error(reply_.text());
  }

  std::vector<uint8_t> priorities(uint32_t rows) {
    std::vector<float> numbers(rows);
    for (float& number : numbers) number = static_cast<float>(random_.uniform()) + 0.01f;
    const auto* at = reinterpret_cast<const uint8_t*>(numbers.data());
    return {at, at + rows * sizeof(float)};
  }

  std::vector<uint8_t> keys(uint32_t rows) {
    Header header;
    header.op = Op::kSample;
    header.schema = hash_;
    header.rows = rows;
    call(header, {});
    return {reply_.body(), reply_.body() + rows * sizeof(Key)};
  }

  Ask ask_;
  uint64_t hash_, row_bytes_ = 0, requests_ = 0;
  Random random_{1};
  Reply reply_;
};

std::vector<double> ping(Way& way, size_t bytes, const Much& much) {
  std::vector<double> times;
  if (bytes < 60 || bytes > 1500) throw std::invalid_argument("a ping has from 60 to 1500 bytes");
  const Clock::time_point patience = Clock::now() + std::chrono::seconds(10);
  while (much.has_more(times.size()) && Clock::now() < patience) {
    const Clock::time_point before = Clock::now();
    if (!way.ping(bytes, before + std::chrono::milliseconds(100))) continue;
    times.push_back(std::chrono::duration<double, std::micro>(Clock::now() - before).count());
  }
  return times;
}

// Sends the node bytes that look like packets, but are invalid.
std::vector<double> noise(Way& way, size_t bytes, const Much& much) {
  Random random(3);
  while (!way.ping(64, Clock::now() + std::chrono::milliseconds(100)) && !stopping) {
  }
  uint64_t i = 0;
  for (; much.has_more(i); ++i) {
    PacketHeader header;
    header.client = random.next();
    header.magic = i % 2 ? kPacketMagic : random.next();
    std::vector<uint8_t> payload(bytes);
    for (uint8_t& byte : payload) byte = static_cast<uint8_t>(random.next());
    while (!way.send(Peer(), header, payload.data(), payload.size()) && !stopping) way.flush();
    way.flush();
  }
  return std::vector<double>(i, 0.0);
}

void say(std::vector<double> times) {
  if (times.empty()) throw std::runtime_error("nothing was answered");
  std::sort(times.begin(), times.end());
  const auto at = [&](double share) {
    return times[static_cast<size_t>(share * static_cast<double>(times.size() - 1))];
  };
  std::printf("{\"count\": %zu, \"p50\": %.3f, \"p99\": %.3f, \"least\": %.3f}\n", times.size(),
              at(0.5), at(0.99), times.front());
  std::fflush(stdout);
}

void answer_lines(Load& load, Way* way) {
  for (std::string line; !stopping && std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::string operation, how_much;
    uint64_t rows = 1;
    words >> operation >> rows >> how_much;
    const Much much(how_much);
    if (way && operation == "ping") {
      say(ping(*way, rows, much));
    } else if (way && operation == "noise") {
      say(noise(*way, rows, much));
    } else {
      say(load.run(operation, static_cast<uint32_t>(rows), much));
    }
  }
}

void measure(int argc, char** argv) {
  LoadFlags given;
  Idle idle;
  Flags flags("hocket-replay-load", "Asks a replay server, and says how long its answers take.");
  flags.add("carrier", "tcp, udp or dpdk", given.carrier);
  flags.add("server", "its address and port, such as 10.0.0.2:7777", given.server);
  flags.add("address", "with dpdk: this end's own address", given.address);
  flags.add("schema", "the columns of the server's table",
            [&](const std::string& word) { given.schema += (given.schema.empty() ? "" : " ") + word; });
  flags.add("spin-us", "with tcp and udp: microseconds to look for a reply before sleeping (0)",
            given.spin_us);
  flags.add("packet-bytes", "bytes of a UDP packet at most (1458)", given.packet_bytes);
  flags.add("credit", "packets of a reply that may be on their way (64)", given.credit);
  flags.add_switch("plain", "with udp: no segmentation offload", given.plain);
  idle.add_to(flags);
  flags.add(given.eal);
  if (!flags.parse(argc, argv)) return;
  const Place server = parse_place("--server", given.server, true);
  const std::string host = text_of({server.address, 0});
  const auto spin = std::chrono::microseconds(given.spin_us);
  DatagramSettings settings;
  settings.name = given.carrier + "://" + given.server;
  settings.packet_bytes = given.packet_bytes;
  settings.credit = static_cast<uint32_t>(given.credit);
  stop_on_signals();
  if (given.carrier == "tcp") {
    StreamCaller caller(host, server.port, spin);
    Load load([&](const Header& header, const uint8_t* body,
                  Reply& reply) { caller.call(header, body, reply); },
              given.schema);
    answer_lines(load, nullptr);
  } else if (given.carrier == "udp") {
    UdpOptions options;
    options.offload = !given.plain;
    options.spin = spin;
    UdpLink link({host, server.port}, options);
    settings.credit = link.credit(settings.packet_bytes, settings.credit);
    DatagramChannel channel(link, settings);
    Load load(over(channel), given.schema);
    answer_lines(load, nullptr);
  } else if (given.carrier == "dpdk") {
    Place own = parse_place("--address", given.address, false);
    own.port = 50000;
    const Eal eal(argv[0], given.eal);
    Way way(0, own, server, idle);
    settings.packet_bytes = std::min(settings.packet_bytes, way.payload_bytes());
    DatagramChannel channel(way, settings);
    Load load(over(channel), given.schema);
    answer_lines(load, &way);
  } else {
    throw std::invalid_argument("--carrier is tcp, udp or dpdk, found `" + given.carrier + "`");
  }
}

}  // namespace
}  // namespace hocket

int main(int argc, char** argv) {
  return hocket::run_program("hocket-replay-load", hocket::measure, argc, argv);
}
