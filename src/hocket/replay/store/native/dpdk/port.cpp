#include "port.h"

#include <rte_dev.h>
#include <rte_devargs.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

#include "../unix_path.h"
#include "turns.h"
#include "xdp.h"

namespace hocket {
namespace {

constexpr uint16_t kDescriptors = 1024;
constexpr unsigned kFrames = 4 * kDescriptors;  // for both rings of a port, and some under way
constexpr unsigned kCached = 256;
constexpr auto kConnecting = std::chrono::seconds(2);

[[noreturn]] void fail(const std::string& what, int error) {
  throw std::runtime_error(what + ": " + rte_strerror(error < 0 ? -error : error));
}

// One thread that may use all of these cores. EAL would bind all our processes to the same core.
std::string lcores(const std::string& cores) {
  if (!cores.empty()) return "0@(" + cores + ")";
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  sched_getaffinity(0, sizeof(allowed), &allowed);
  std::string found;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &allowed)) found += (found.empty() ? "" : ",") + std::to_string(core);
  }
  return "0@(" + found + ")";
}

bool is_memif(const std::string& device) { return device.rfind("net_memif", 0) == 0; }
bool is_xdp(const std::string& device) { return device.rfind("net_af_xdp", 0) == 0; }

// The value of a key in a device as --vdev names it, NAME,KEY=VALUE,...; empty if it is missing.
std::string value_of(const std::string& key, const std::string& device) {
  const size_t at = device.find("," + key + "=");
  if (at == std::string::npos) return "";
  const size_t from = at + key.size() + 2;
  return device.substr(from, device.find(',', from) - from);
}

bool is_memif_client(uint16_t number) {
  rte_eth_dev_info about{};
  if (rte_eth_dev_info_get(number, &about) || !about.device) return false;
  const rte_devargs* given = rte_dev_devargs(about.device);
  return given && is_memif(given->name) && given->args &&
         std::strstr(given->args, "role=client");
}

}  // namespace

Eal::Eal(const std::string& program, const EalOptions& options) {
  std::vector<std::string> words = {program, "--no-telemetry", "--no-shconf", "--lcores",
                                    lcores(options.cores), "--log-level", "*:error",
                                    "--file-prefix", "hocket" + std::to_string(getpid())};
  if (options.allowed.empty()) words.push_back("--no-pci");
  for (const std::string& device : options.allowed) words.insert(words.end(), {"-a", device});
  if (options.huge) {
    words.push_back("--in-memory");  // so that no file is left after a kill
  } else {
    words.insert(words.end(), {"--no-huge", "-m", std::to_string(options.megabytes)});
  }
  for (const std::string& device : options.devices) {
    words.insert(words.end(), {"--vdev", device});
    if (is_memif(device) && value_of("role", device) == "server") {
      // A process that was killed leaves the file of its socket, and the next could not listen
      // there.
      if (const auto at = unix_address(value_of("socket", device))) {
        free_path(*at, SOCK_SEQPACKET);
      }
    }
    if (!is_xdp(device)) continue;
    // A process that was killed leaves its program, which would keep all packets.
    interfaces_.push_back(value_of("iface", device));
    detach_xdp(interfaces_.back());
    // Ours is the only program there. libxdp's dispatcher for several would need a BPF filesystem.
    setenv("LIBXDP_SKIP_DISPATCHER", "1", 0);
  }
  words.insert(words.end(), options.more.begin(), options.more.end());
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  if (rte_eal_init(static_cast<int>(arguments.size()), arguments.data()) < 0) {
    std::string all;
    for (const std::string& word : words) all += " " + word;
    fail("DPDK did not start with" + all, rte_errno);
  }
  if (std::any_of(options.devices.begin(), options.devices.end(), is_memif)) take_turns();
}

Eal::~Eal() {
  // Without rte_eal_cleanup, which unmaps memory that EAL's own thread may be reading: a crash.
  rmdir(rte_eal_get_runtime_dir());  // it is empty, since nothing is shared with other processes
  for (const std::string& interface : interfaces_) detach_xdp(interface);
}

uint16_t Port::count() { return rte_eth_dev_count_avail(); }

Port::Port(uint16_t number) : number_(number) {
  const std::string name = "port " + std::to_string(number);
  pool_ = rte_pktmbuf_pool_create(name.c_str(), kFrames - 1, kCached, 0,
                                  RTE_MBUF_DEFAULT_BUF_SIZE, SOCKET_ID_ANY);
  if (!pool_) fail(name + ": no memory for its packets", rte_errno);
  rte_eth_conf configuration{};
  uint16_t receives = kDescriptors, sends = kDescriptors;
  const auto check = [&](int error, const char* what) {
    if (error < 0) fail(name + ": " + what, error);
  };
  check(rte_eth_dev_configure(number, 1, 1, &configuration), "cannot be configured");
  check(rte_eth_dev_adjust_nb_rx_tx_desc(number, &receives, &sends), "has no such rings");
  check(rte_eth_rx_queue_setup(number, 0, receives, SOCKET_ID_ANY, nullptr, pool_), "cannot receive");
  check(rte_eth_tx_queue_setup(number, 0, sends, SOCKET_ID_ANY, nullptr), "cannot send");
  check(rte_eth_dev_start(number), "cannot be started");
  check(rte_eth_macaddr_get(number, &mac_), "has no address");
  rte_eth_promiscuous_enable(number);
  reconnects_ = is_memif_client(number);
  // A memif server crashes if a client goes before it is greeted, so we wait for the connection.
  const Clock::time_point patience = Clock::now() + kConnecting;
  while (reconnects_ && !is_up() && Clock::now() < patience) give_turn(false, Clock::now());
}

Port::~Port() {
  for (uint16_t i = 0; i < queued_; ++i) rte_pktmbuf_free(queue_[i]);
  rte_eth_dev_stop(number_);
  rte_eth_dev_close(number_);
  rte_mempool_free(pool_);
}

size_t Port::payload_bytes() const {
  uint16_t mtu = 1500;
  rte_eth_dev_get_mtu(number_, &mtu);
  const size_t fits = RTE_MBUF_DEFAULT_DATAROOM - RTE_ETHER_HDR_LEN;
  return std::min<size_t>(mtu, fits) - 28;  // the headers of IP and UDP
}

bool Port::is_up() const {
  rte_eth_link link{};
  return rte_eth_link_get_nowait(number_, &link) || link.link_status;
}

void Port::reconnect() {
  if (!reconnects_ || is_up()) return;
  rte_eth_dev_stop(number_);
  rte_eth_dev_start(number_);
}

rte_mbuf* Port::room() { return rte_pktmbuf_alloc(pool_); }

uint16_t Port::receive(rte_mbuf** frames) {
  return rte_eth_rx_burst(number_, 0, frames, kBurst);
}

bool Port::put(rte_mbuf* frame) {
  if (queued_ == kQueued) {
    flush();
    if (queued_ == kQueued) return false;
  }
  queue_[queued_++] = frame;
  // The first frames of a long reply are sent while the next are written.
  if (queued_ % kEager == 0) flush();
  return true;
}

void Port::flush() {
  if (!queued_) return;
  const uint16_t sent = rte_eth_tx_burst(number_, 0, queue_, queued_);
  queued_ = static_cast<uint16_t>(queued_ - sent);
  if (queued_) std::memmove(queue_, queue_ + sent, queued_ * sizeof(*queue_));
}

}  // namespace hocket
