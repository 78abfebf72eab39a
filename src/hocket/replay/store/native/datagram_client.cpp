#include "datagram_client.h"

#include <sys/random.h>

#include <algorithm>
#include <stdexcept>

#include "datagram_server.h"

namespace hocket {
namespace {

constexpr auto kSendAgain = std::chrono::microseconds(100);  // if the sink had no room
constexpr size_t kSpare = 4;
constexpr size_t kKeep = 1024 * 1024;  // the memory that a slot keeps for its next request

// True if carrying a request out twice does no harm.
bool is_repeatable(Op op) { return op != Op::kInsert && op != Op::kFrames && op != Op::kReset; }

}  // namespace

uint64_t random_client() {
  uint64_t id = 0;
  if (getrandom(&id, sizeof(id), 0) != sizeof(id)) throw std::runtime_error("no random numbers");
  return id;
}

DatagramClient::DatagramClient(PacketSink& sink, DatagramSettings settings, uint64_t id)
    : sink_(sink), settings_(std::move(settings)), id_(id), slots_(kMostUnderWay) {
  settings_.packet_bytes = std::clamp(settings_.packet_bytes, sizeof(PacketHeader) + kLeastStride,
                                      kMostPacketBytes);
  settings_.credit = std::clamp(settings_.credit, uint32_t{1}, kMostCredit);
}

uint64_t DatagramClient::oldest() const {
  uint64_t found = next_;
  for (const Slot& slot : slots_) {
    if (slot.number) found = std::min(found, slot.number);
  }
  return found;
}

PacketHeader DatagramClient::like(const Slot& slot) const {
  PacketHeader header;
  header.client = id_;
  header.request = slot.number;
  header.credit = settings_.credit;
  header.behind = static_cast<uint16_t>(slot.number - oldest());
  return header;
}

void DatagramClient::ask(const Header& header, const uint8_t* body, Clock::time_point now) {
  if (is_full()) throw std::logic_error("too many requests are under way");
  if (header.length > settings_.most_bytes) {
    throw std::invalid_argument("a request of " + std::to_string(header.length) +
                                " bytes is too large: at most " +
                                std::to_string(settings_.most_bytes));
  }
  Slot& slot = slots_[next_ % slots_.size()];
  uint8_t* to = slot.request.resize(sizeof(header) + header.length);
  std::memcpy(to, &header, sizeof(header));
  if (header.length) std::memcpy(to + sizeof(header), body, header.length);
  slot.header = header;
  slot.number = next_++;
  ++under_way_;
  send(slot, now);
}

void DatagramClient::send(Slot& slot, Clock::time_point now) {
  slot.arrives = false;
  slot.times = 1;
  slot.since = now;
  slot.leaving.begin(static_cast<uint32_t>(slot.request.size()), settings_.packet_bytes,
                     kFirstCredit);
  progress(slot, now);
  if (!slot.leaving.send(sink_, Peer(), like(slot), slot.request)) slot.due = now + kSendAgain;
}

void DatagramClient::abandon(uint64_t request) {
  for (Slot& slot : slots_) {
    if (!slot.number || slot.header.request != request) continue;
    slot.number = 0;
    --under_way_;
    // In the name of the next request, which does not exist yet, this tells the server which
    // requests we still wait for. If it is lost, the next request tells it.
    Slot next;
    next.number = next_;
    send_state(sink_, Peer(), like(next), PacketKind::kMore, 0, {});
    return;
  }
}

void DatagramClient::abandon_all() {
  for (Slot& slot : slots_) slot.number = 0;
  under_way_ = 0;
}

void DatagramClient::progress(Slot& slot, Clock::time_point now) {
  slot.timeout = settings_.first_timeout;
  slot.due = now + slot.timeout;
}

void DatagramClient::packet(const uint8_t* data, size_t size, Clock::time_point now) {
  Packet packet;
  if (!read_packet(data, size, packet) || packet.header.client != id_) return;
  Slot& slot = slots_[packet.header.request % slots_.size()];
  if (slot.number != packet.header.request) return;  // its reply has already arrived
  heard_ = now;
  switch (packet.header.kind) {
    case PacketKind::kReply: reply(slot, packet, now); break;
    case PacketKind::kUnknown: start_afresh(now); break;
    case PacketKind::kHave:
      if (slot.arrives) break;
      slot.leaving.repeat(sink_, Peer(), like(slot), slot.request, read_gaps(packet));
      // If the server has all of it, the request just waits there, and we ask less and less often.
      if (packet.bytes || packet.header.credit > slot.leaving.sent()) progress(slot, now);
      slot.leaving.grant(packet.header.credit);
      if (!slot.leaving.send(sink_, Peer(), like(slot), slot.request)) slot.due = now + kSendAgain;
      break;
    default: break;
  }
}

void DatagramClient::reply(Slot& slot, const Packet& packet, Clock::time_point now) {
  const PacketHeader& header = packet.header;
  if (header.length < sizeof(Header) || header.length > settings_.most_bytes) return;
  if (!slot.arrives) {
    if (!spare_.empty()) {
      slot.reply = std::move(spare_.back());
      spare_.pop_back();
    }
    slot.reply.resize(header.length);
    slot.arrives = true;
    slot.arriving.begin(header, settings_.credit, settings_.credit);
  }
  if (!slot.arriving.fits(header) || !slot.arriving.add(packet, slot.reply)) return;
  if (slot.arriving.is_whole()) {
    Header found;
    std::memcpy(&found, slot.reply.data(), sizeof(found));
    if (found.magic == kWireMagic && found.length == slot.reply.size() - sizeof(found)) {
      finish(slot);
    } else {
      fail(slot, settings_.name + " sent a reply that is none: is it of another version?");
    }
    return;
  }
  progress(slot, now);
  if (slot.arriving.wants_more()) {
    send_state(sink_, Peer(), like(slot), PacketKind::kMore, slot.arriving.granted(), {});
  }
}

void DatagramClient::finish(Slot& slot) {
  Reply& reply = done_.emplace_back();
  reply.message = std::move(slot.reply);
  std::memcpy(&reply.header, reply.message.data(), sizeof(Header));
  slot.number = 0;
  if (slot.request.room() > kKeep) slot.request.free();
  --under_way_;
}

void DatagramClient::fail(Slot& slot, const std::string& why) {
  Header header = slot.header;
  header.code = Code::kClosed;
  header.length = why.size();
  uint8_t* to = slot.reply.resize(sizeof(header) + why.size());
  std::memcpy(to, &header, sizeof(header));
  std::memcpy(to + sizeof(header), why.data(), why.size());
  finish(slot);
}

void DatagramClient::tick(Clock::time_point now) {
  // If nobody called `tick` for long, no packet was read either: the silence may be ours.
  if (now - looked_ > 4 * settings_.longest_timeout) heard_ = now;
  looked_ = now;
  for (Slot& slot : slots_) {
    if (!slot.number || now < slot.due) continue;
    if (now - std::max(heard_, slot.since) > settings_.patience) {
      const auto seconds = std::chrono::duration<double>(settings_.patience).count();
      fail(slot, settings_.name + " did not answer for " + text(seconds) +
                     " s: see that it runs, and that packets reach it");
      continue;
    }
    ask_again(slot, now);
  }
}

void DatagramClient::ask_again(Slot& slot, Clock::time_point now) {
  if (!slot.arrives) {
    // First send packets that are granted, but for which the sink had no room before.
    const uint32_t before = slot.leaving.sent();
    const bool all = slot.leaving.send(sink_, Peer(), like(slot), slot.request);
    if (!all || slot.leaving.sent() > before) {
      slot.due = now + (all ? slot.timeout : Clock::duration(kSendAgain));
      return;
    }
  }
  ++sent_again_;
  slot.timeout = std::min(2 * slot.timeout, settings_.longest_timeout);
  slot.due = now + slot.timeout;
  if (slot.arrives) {
    send_state(sink_, Peer(), like(slot), PacketKind::kMore, slot.arriving.granted(),
               slot.arriving.gaps());
    return;
  }
  ++slot.times;
  PacketHeader header = like(slot);
  header.kind = PacketKind::kProbe;
  slot.leaving.repeat(sink_, Peer(), header, slot.request, {{0, 1}});
}

// The server does not know this client: it was restarted, or it forgot the client.
void DatagramClient::start_afresh(Clock::time_point now) {
  std::vector<Slot> old(slots_.size());
  old.swap(slots_);
  std::sort(old.begin(), old.end(), [](const Slot& a, const Slot& b) { return a.number < b.number; });
  id_ = random_client();
  next_ = 1;
  for (Slot& from : old) {
    if (!from.number) continue;
    // A request that was sent only once is the one that the server has just refused.
    const bool again = from.times == 1 || is_repeatable(from.header.op);
    if (!again) {
      fail(from, settings_.name + " was started again, or forgot this client: whether this request "
                     "was carried out before is not known");
      continue;
    }
    Slot& slot = slots_[next_ % slots_.size()];
    slot = std::move(from);
    slot.number = next_++;
    send(slot, now);
  }
}

Clock::time_point DatagramClient::due() const {
  Clock::time_point found = Clock::time_point::max();
  for (const Slot& slot : slots_) {
    if (slot.number) found = std::min(found, slot.due);
  }
  return found;
}

bool DatagramClient::take(Reply& reply) {
  if (done_.empty()) return false;
  std::swap(reply, done_.front());
  // The memory of the previous reply is kept for one to come.
  if (spare_.size() < kSpare) spare_.push_back(std::move(done_.front().message));
  done_.pop_front();
  return true;
}

void DatagramChannel::ask(const Header& header, const uint8_t* body) {
  client_.ask(header, body, Clock::now());
  link_.flush();
}

bool DatagramChannel::receive(Reply& reply, Clock::time_point until) {
  for (;;) {
    if (client_.take(reply)) return true;
    const Clock::time_point now = Clock::now();
    if (now >= until) return false;
    if (now >= client_.due()) {
      client_.tick(now);
    } else {
      link_.receive(std::min(until, client_.due()), [&](const uint8_t* data, size_t size) {
        client_.packet(data, size, Clock::now());
      });
    }
    link_.flush();
  }
}

}  // namespace hocket
