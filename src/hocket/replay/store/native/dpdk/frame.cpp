#include "frame.h"

#include <arpa/inet.h>
#include <rte_arp.h>
#include <rte_icmp.h>
#include <rte_ip.h>
#include <rte_udp.h>

#include <cstring>
#include <stdexcept>

namespace hocket {
namespace {

// The headers before a packet. They are packed, because IP begins 14 bytes into the frame.
struct UdpFrame {
  rte_ether_hdr ether;
  rte_ipv4_hdr ip;
  rte_udp_hdr udp;
};
struct PingFrame {
  rte_ether_hdr ether;
  rte_ipv4_hdr ip;
  rte_icmp_hdr icmp;
};
struct ArpFrame {
  rte_ether_hdr ether;
  rte_arp_hdr arp;
};
static_assert(sizeof(UdpFrame) == 42 && sizeof(ArpFrame) == 42);

template <typename Frame>
Frame* as(rte_mbuf* frame) {
  return frame->data_len < sizeof(Frame) ? nullptr : rte_pktmbuf_mtod(frame, Frame*);
}

uint16_t ip_checksum(const rte_ipv4_hdr& ip) {
  rte_ipv4_hdr copy = ip;  // an aligned copy
  copy.hdr_checksum = 0;
  return rte_ipv4_cksum(&copy);
}

void write_ip(rte_ipv4_hdr& ip, uint32_t from, uint32_t to, size_t bytes, uint8_t protocol) {
  ip = {};
  ip.version_ihl = 0x45;
  ip.total_length = htons(static_cast<uint16_t>(sizeof(ip) + bytes));
  ip.fragment_offset = htons(RTE_IPV4_HDR_DF_FLAG);
  ip.time_to_live = 64;
  ip.next_proto_id = protocol;
  ip.src_addr = from;
  ip.dst_addr = to;
  ip.hdr_checksum = ip_checksum(ip);
}

void write_ether(rte_ether_hdr& ether, const rte_ether_addr& from, const rte_ether_addr& to,
                 uint16_t type) {
  ether.dst_addr = to;
  ether.src_addr = from;
  ether.ether_type = htons(type);
}

void resize(rte_mbuf* frame, size_t bytes) {
  frame->data_len = static_cast<uint16_t>(bytes);
  frame->pkt_len = static_cast<uint32_t>(bytes);
}

Look look_at_arp(rte_mbuf* frame, const Place& own, const Port& port) {
  Look look;
  auto* whole = as<ArpFrame>(frame);
  if (!whole) return look;
  rte_arp_ipv4& about = whole->arp.arp_data;
  if (about.arp_tip != own.address) return look;
  look.from = {{about.arp_sip, 0}, about.arp_sha, port.number()};
  if (whole->arp.arp_opcode == htons(RTE_ARP_OP_REPLY)) look.seen = Seen::kFound;
  if (whole->arp.arp_opcode != htons(RTE_ARP_OP_REQUEST)) return look;
  look.seen = Seen::kReply;
  whole->arp.arp_opcode = htons(RTE_ARP_OP_REPLY);
  about.arp_tha = about.arp_sha;
  about.arp_tip = about.arp_sip;
  about.arp_sha = port.mac();
  about.arp_sip = own.address;
  write_ether(whole->ether, port.mac(), about.arp_tha, RTE_ETHER_TYPE_ARP);
  return look;
}

void answer_ping(PingFrame& whole, const Port& port) {
  whole.icmp.icmp_type = RTE_IP_ICMP_ECHO_REPLY;
  // Only the type changes, by 8, so the checksum is adjusted by that.
  const uint32_t sum = ntohs(whole.icmp.icmp_cksum) + 0x0800u;
  whole.icmp.icmp_cksum = htons(static_cast<uint16_t>(sum + (sum >> 16)));
  const uint32_t from = whole.ip.src_addr;
  whole.ip.src_addr = whole.ip.dst_addr;
  whole.ip.dst_addr = from;
  const rte_ether_addr to = whole.ether.src_addr;
  write_ether(whole.ether, port.mac(), to, RTE_ETHER_TYPE_IPV4);
}

}  // namespace

Place parse_place(const std::string& option, const std::string& text, bool with_port) {
  const size_t colon = text.find(':');
  Place place;
  in_addr address{};
  const std::string host = text.substr(0, colon);
  bool good = inet_pton(AF_INET, host.c_str(), &address) == 1;
  if (with_port) {
    const std::string port = colon == std::string::npos ? "" : text.substr(colon + 1);
    good = good && !port.empty() && port.size() <= 5 &&
           port.find_first_not_of("0123456789") == std::string::npos;
    const unsigned long number = good ? std::stoul(port) : 0;
    good = good && number > 0 && number < 65536;
    place.port = static_cast<uint16_t>(number);
  } else {
    good = good && colon == std::string::npos;
  }
  if (!good) {
    throw std::invalid_argument(option + " is an IPv4 address" +
                                (with_port ? " and a port, such as 10.0.0.2:7777"
                                           : ", such as 10.0.0.1") +
                                ", found `" + text + "`");
  }
  place.address = address.s_addr;
  return place;
}

std::string text_of(const Place& place) {
  char text[INET_ADDRSTRLEN];
  inet_ntop(AF_INET, &place.address, text, sizeof(text));
  return text + (place.port ? ":" + std::to_string(place.port) : "");
}

Look look_at(rte_mbuf* frame, const Place& own, const Port& port) {
  Look look;
  const auto* ether = as<rte_ether_hdr>(frame);
  if (!ether || frame->nb_segs != 1) return look;
  if (ether->ether_type == htons(RTE_ETHER_TYPE_ARP)) return look_at_arp(frame, own, port);
  auto* ping = as<PingFrame>(frame);
  if (!ping || ether->ether_type != htons(RTE_ETHER_TYPE_IPV4)) return look;
  const rte_ipv4_hdr& ip = ping->ip;
  const size_t total = ntohs(ip.total_length);
  if (ip.version_ihl != 0x45 || ip.dst_addr != own.address || total < sizeof(ip) + 8 ||
      total > frame->data_len - sizeof(rte_ether_hdr) ||
      (ip.fragment_offset & htons(RTE_IPV4_HDR_MF_FLAG | RTE_IPV4_HDR_OFFSET_MASK))) {
    return look;
  }
  look.from = {{ip.src_addr, 0}, ether->src_addr, port.number()};
  if (ip.next_proto_id == IPPROTO_ICMP) {
    const uint8_t type = ping->icmp.icmp_type;
    if (type == RTE_IP_ICMP_ECHO_REPLY) look.seen = Seen::kFound;
    if (type != RTE_IP_ICMP_ECHO_REQUEST) return look;
    answer_ping(*ping, port);
    look.seen = Seen::kReply;
  }
  if (ip.next_proto_id != IPPROTO_UDP) return look;
  const auto* whole = rte_pktmbuf_mtod(frame, const UdpFrame*);
  const size_t length = ntohs(whole->udp.dgram_len);
  if (ntohs(whole->udp.dst_port) != own.port || length < sizeof(rte_udp_hdr) ||
      length > total - sizeof(ip)) {
    return look;
  }
  look.from.place.port = ntohs(whole->udp.src_port);
  look.seen = Seen::kPacket;
  look.payload = rte_pktmbuf_mtod(frame, const uint8_t*) + sizeof(UdpFrame);
  look.bytes = length - sizeof(rte_udp_hdr);
  return look;
}

bool write_packet(rte_mbuf* frame, const Port& port, const Place& from, const Station& to,
                  const PacketHeader& header, const uint8_t* payload, size_t bytes) {
  const size_t all = sizeof(UdpFrame) + sizeof(header) + bytes;
  if (all > rte_pktmbuf_tailroom(frame)) return false;
  resize(frame, all);
  auto* whole = rte_pktmbuf_mtod(frame, UdpFrame*);
  write_ether(whole->ether, port.mac(), to.mac, RTE_ETHER_TYPE_IPV4);
  const size_t length = all - sizeof(rte_ether_hdr) - sizeof(rte_ipv4_hdr);
  write_ip(whole->ip, from.address, to.place.address, length, IPPROTO_UDP);
  whole->udp.src_port = htons(from.port);
  whole->udp.dst_port = htons(to.place.port);
  whole->udp.dgram_len = htons(static_cast<uint16_t>(length));
  whole->udp.dgram_cksum = 0;  // unused, because a packet has a better one of its own
  auto* at = rte_pktmbuf_mtod(frame, uint8_t*) + sizeof(UdpFrame);
  std::memcpy(at, &header, sizeof(header));
  if (bytes) std::memcpy(at + sizeof(header), payload, bytes);
  return true;
}

void write_arp(rte_mbuf* frame, const Port& port, const Place& from, const Place& to) {
  resize(frame, 60);
  auto* whole = rte_pktmbuf_mtod(frame, ArpFrame*);
  std::memset(whole, 0, 60);
  rte_ether_addr all;
  std::memset(&all, 0xff, sizeof(all));
  write_ether(whole->ether, port.mac(), all, RTE_ETHER_TYPE_ARP);
  whole->arp.arp_hardware = htons(RTE_ARP_HRD_ETHER);
  whole->arp.arp_protocol = htons(RTE_ETHER_TYPE_IPV4);
  whole->arp.arp_hlen = sizeof(rte_ether_addr);
  whole->arp.arp_plen = sizeof(uint32_t);
  whole->arp.arp_opcode = htons(RTE_ARP_OP_REQUEST);
  whole->arp.arp_data.arp_sha = port.mac();
  whole->arp.arp_data.arp_sip = from.address;
  whole->arp.arp_data.arp_tip = to.address;
}

void write_ping(rte_mbuf* frame, const Port& port, const Place& from, const Station& to,
                size_t frame_bytes, uint16_t number) {
  resize(frame, frame_bytes);
  auto* whole = rte_pktmbuf_mtod(frame, PingFrame*);
  std::memset(whole, 0, frame_bytes);
  write_ether(whole->ether, port.mac(), to.mac, RTE_ETHER_TYPE_IPV4);
  const size_t length = frame_bytes - sizeof(rte_ether_hdr) - sizeof(rte_ipv4_hdr);
  write_ip(whole->ip, from.address, to.place.address, length, IPPROTO_ICMP);
  whole->icmp.icmp_type = RTE_IP_ICMP_ECHO_REQUEST;
  whole->icmp.icmp_seq_nb = htons(number);
  const uint32_t sum = (uint32_t{RTE_IP_ICMP_ECHO_REQUEST} << 8) + number;
  whole->icmp.icmp_cksum = htons(static_cast<uint16_t>(~(sum + (sum >> 16))));
}

}  // namespace hocket
