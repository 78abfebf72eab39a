// hocket-replay-kernel: a table behind the kernel's TCP and UDP sockets, to compare a node with.
// For real use there is `hocket replay serve`.

#include <poll.h>

#include <cstdio>
#include <thread>

#include "../server.h"
#include "../spin.h"
#include "../udp.h"
#include "flags.h"
#include "frame.h"
#include "idle.h"
#include "tables.h"

namespace hocket {
namespace {

void serve_udp(Desk& desk, UdpListener& udp, int64_t spin_ns) {
  const auto look = [&] {
    const Clock::time_point now = Clock::now();
    const bool found = udp.readable(now);
    if (desk.take_changed()) udp.retry(now);
    if (now >= udp.due()) udp.tick(now);
    return found || stopping;
  };
  while (!stopping) {
    if (spin_ns ? spin(look, spin_ns) : look()) continue;
    pollfd about = {udp.file(), POLLIN, 0};
    ::poll(&about, 1, 10);
  }
}

void serve(int argc, char** argv) {
  std::string address;
  uint64_t spin_us = 0, packet_bytes = kPacketBytes;
  bool plain = false, over_udp = false;
  TableFlags table;
  Flags flags("hocket-replay-kernel", "A table behind a TCP socket, or a UDP one.");
  flags.add("address", "address and port, such as 10.0.0.2:7777", address);
  flags.add("spin-us", "microseconds to look for requests before sleeping (0)", spin_us);
  flags.add("packet-bytes", "bytes of a UDP packet at most (1458)", packet_bytes);
  flags.add_switch("udp", "UDP instead of TCP", over_udp);
  flags.add_switch("plain", "with UDP: no segmentation offload", plain);
  table.add_to(flags);
  if (!flags.parse(argc, argv)) return;
  const Place own = parse_place("--address", address, true);
  const std::string host = text_of({own.address, 0});
  const uint64_t most = uint64_t{64} << 20;
  stop_on_signals();
  const auto say = [&] {
    std::printf("serving %s at %s\n", table.name.c_str(), address.c_str());
    std::fflush(stdout);
  };
  if (over_udp) {
    Desk desk({table.open()}, most);
    UdpOptions options;
    options.offload = !plain;
    DatagramLimits limits;
    limits.packet_bytes = packet_bytes;
    UdpListener udp(desk, {host, own.port}, options, limits);
    say();
    serve_udp(desk, udp, static_cast<int64_t>(spin_us) * 1000);
    return;
  }
  ServerOptions options;
  options.most_bytes = most;
  options.spin_seconds = static_cast<double>(spin_us) * 1e-6;
  Server server({table.open()}, options);
  server.listen_tcp(host, own.port);
  say();
  std::thread thread([&] { server.run(); });
  while (!stopping) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  server.stop();
  thread.join();
}

}  // namespace
}  // namespace hocket

int main(int argc, char** argv) {
  return hocket::run_program("hocket-replay-kernel", hocket::serve, argc, argv);
}
