// DPDK's environment and its ports for the programs of this folder, with one thread and one queue.
//
// `--vdev` chooses a driver, by its name in EAL:
//
//   net_memif0,role=server,socket=/run/a.sock,socket-abstract=no   shared memory; no privilege
//   net_af_packet0,iface=eth1                                      the kernel's raw sockets
//   net_af_xdp0,iface=eth1                                         AF_XDP
//
// and `--allow 0000:03:00.0` a real NIC. Without --allow, PCI is not touched, because EAL as root
// would take the machine's own NIC. Huge pages are only used with `--huge`.

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
  std::vector<std::string> more;  // passed on to EAL
};

// Starts EAL, for the rest of the process. Throws std::runtime_error.
class Eal {
 public:
  Eal(const std::string& program, const EalOptions& options);
  ~Eal();
  Eal(const Eal&) = delete;
  Eal& operator=(const Eal&) = delete;

 private:
  std::vector<std::string> interfaces_;  // those with an XDP program of ours
};

class Port {
 public:
  static constexpr uint16_t kBurst = 32;

  // Opens the port with this number, from 0, in promiscuous mode if its driver has that.
  explicit Port(uint16_t number);
  ~Port();
  Port(const Port&) = delete;
  Port& operator=(const Port&) = delete;

  static uint16_t count();

  uint16_t number() const { return number_; }
  const rte_ether_addr& mac() const { return mac_; }
  // The longest UDP payload without IP fragments.
  size_t payload_bytes() const;
  // Looks for the server of a memif client again, which its driver does not do. Call it now and
  // then.
  void reconnect();

  // A new frame; null if there is no memory now.
  rte_mbuf* room();
  uint16_t receive(rte_mbuf** frames);
  // Queues a frame until `flush`, or until there are many. If there is no room, returns false, and
  // the frame still belongs to the caller.
  bool put(rte_mbuf* frame);
  void flush();
  // The same, but frees the frame if there is no room.
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
