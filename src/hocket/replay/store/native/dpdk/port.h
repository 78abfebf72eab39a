// DPDK's environment and its ports, as this folder's programs use them: one thread, one queue each.
//
// PMDs are chosen by `--vdev`, as EAL names them:
//
//   net_memif0,role=server,socket=/run/a.sock,socket-abstract=no   shared memory; no privilege
//   net_af_packet0,iface=eth1                                      the kernel's raw sockets
//   net_af_xdp0,iface=eth1                                         AF_XDP
//
// and a real NIC by `--allow 0000:03:00.0`. Without --allow, PCI is left alone: EAL as root would
// take the machine's own NIC. Huge pages are used only with `--huge`.

#pragma once

#include <rte_ether.h>
#include <rte_mbuf.h>

#include <cstdint>
#include <string>
#include <vector>

namespace hocket {

struct EalOptions {
  std::vector<std::string> devices;  // --vdev
  std::vector<std::string> allowed;  // --allow
  bool huge = false;
  unsigned megabytes = 64;   // without huge pages
  std::string cores;         // such as 0-1; empty for all that this process may use
  std::vector<std::string> more;  // for EAL as they are
};

// Starts EAL, for the rest of the process. Throws std::runtime_error.
class Eal {
 public:
  Eal(const std::string& program, const EalOptions& options);
  ~Eal();
  Eal(const Eal&) = delete;
  Eal& operator=(const Eal&) = delete;

 private:
  std::vector<std::string> interfaces_;  // whose XDP programs are ours
};

class Port {
 public:
  static constexpr uint16_t kBurst = 32;

  // Opens the port of that number, from 0; a PMD without promiscuous mode goes on without.
  explicit Port(uint16_t number);
  ~Port();
  Port(const Port&) = delete;
  Port& operator=(const Port&) = delete;

  static uint16_t count();

  uint16_t number() const { return number_; }
  const rte_ether_addr& mac() const { return mac_; }
  // The longest UDP payload without IP fragments.
  size_t payload_bytes() const;
  // A memif client does not look for its server again by itself. Called now and then, this does.
  void reconnect();

  // Null if there is no memory for one now.
  rte_mbuf* room();
  uint16_t receive(rte_mbuf** frames);
  // Kept until `flush`, or until there are many. False if there is no room: the frame is still the
  // caller's.
  bool put(rte_mbuf* frame);
  void flush();
  // The same, but a frame for which there is no room is freed.
  void put_or_drop(rte_mbuf* frame) {
    if (!put(frame)) rte_pktmbuf_free(frame);
  }

 private:
  bool is_up() const;

  uint16_t number_, queued_ = 0;
  bool reconnects_ = false;
  rte_ether_addr mac_{};
  rte_mempool* pool_ = nullptr;
  static constexpr uint16_t kQueued = 64, kEager = 8;
  rte_mbuf* queue_[kQueued];
};

}  // namespace hocket
