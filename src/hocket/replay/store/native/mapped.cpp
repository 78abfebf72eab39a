#include "mapped.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <stdexcept>

namespace hocket {
namespace {

constexpr uint64_t kSmall = uint64_t{2} << 20;

void* map(const Region& region, int memory, uint64_t most_bytes) {
  const uint64_t most = 2 * most_bytes + kSmall;  // clients round up to powers of two
  if (region.request_bytes > most || region.reply_bytes > most) {
    throw std::runtime_error("a message of " +
                             std::to_string(std::max(region.request_bytes, region.reply_bytes)) +
                             " bytes is too large: at most " + std::to_string(most_bytes));
  }
  if (!region.slots || region.slots > kMostSlots || region.request_bytes < sizeof(Header) ||
      region.reply_bytes < kLeastReply) {
    throw std::runtime_error("a region has from 1 to " + std::to_string(kMostSlots) +
                             " slots of at least " + std::to_string(sizeof(Header)) + " and " +
                             std::to_string(kLeastReply) + " bytes, found " +
                             std::to_string(region.slots) + " of " +
                             std::to_string(region.request_bytes) + " and " +
                             std::to_string(region.reply_bytes));
  }
  struct stat about;
  if (fstat(memory, &about) || static_cast<uint64_t>(about.st_size) < region_bytes(region)) {
    throw std::runtime_error("a region of " + std::to_string(region_bytes(region)) +
                             " bytes is larger than its file");
  }
  // If the client could shrink the memory, reading it would crash the server.
  const int seals = fcntl(memory, F_GET_SEALS);
  if (seals < 0 || !(seals & F_SEAL_SHRINK)) {
    throw std::runtime_error("a region is a memfd with the seal F_SEAL_SHRINK");
  }
  void* found =
      mmap(nullptr, region_bytes(region), PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
  if (found == MAP_FAILED) {
    throw std::runtime_error(std::string("a region cannot be mapped: ") + std::strerror(errno));
  }
  return found;
}

}  // namespace

// The room for a reply, in the slot of its request.
class Mapped::Room final : public Outbox {
 public:
  Room(uint8_t* to, uint64_t bytes) : to_(to), bytes_(bytes) {}
  uint8_t* room(uint64_t bytes) override { return bytes <= bytes_ ? to_ : nullptr; }

 private:
  uint8_t* to_;
  uint64_t bytes_;
};

Mapped::Mapped(Desk& desk, const Region& region, int memory, int bell)
    : desk_(desk), region_(region), bell_(bell) {
  try {
    base_ = map(region, memory, desk.most_bytes());
  } catch (...) {
    close(memory);
    close(bell);
    throw;
  }
  close(memory);
}

Mapped::~Mapped() {
  for (const Parked& parked : parked_) desk_.forget(parked.header, parked.pending);
  munmap(base_, region_bytes(region_));
  close(bell_);
}

bool Mapped::has_request() const { return head()->head.load(std::memory_order_acquire) != tail_; }

bool Mapped::poll() {
  if (!has_request()) return false;
  // More requests than slots are nonsense, and would keep the server busy for long.
  if (const uint64_t head_now = head()->head.load(std::memory_order_acquire);
      head_now - tail_ > kMostSlots) {
    tail_ = head_now;
    ++desk_.traffic.dropped;
    return true;
  }
  const uint32_t slot = head()->ring[tail_++ % kMostSlots].load(std::memory_order_relaxed);
  // A client that writes nonsense here gets no answer, and harms only itself.
  if (slot >= region_.slots || taken_ >> slot & 1) {
    ++desk_.traffic.dropped;
    return true;
  }
  Parked parked{slot, {}, {}};
  std::memcpy(&parked.header, request_at(base_, region_, slot), sizeof(Header));
  taken_ |= uint64_t{1} << slot;
  if (!answer(parked)) parked_.push_back(std::move(parked));
  return true;
}

void Mapped::retry() {
  for (auto it = parked_.begin(); it != parked_.end();) {
    if (head()->lines[it->slot].state.load(std::memory_order_relaxed) == kAbandoned) {
      desk_.forget(it->header, it->pending);
      finish(it->slot);
      it = parked_.erase(it);
    } else {
      it = answer(*it) ? parked_.erase(it) : it + 1;
    }
  }
}

// Answers a request. Returns false if it has to wait.
bool Mapped::answer(Parked& parked) {
  const uint32_t slot = parked.slot;
  Room room(reply_at(base_, region_, slot), region_.reply_bytes);
  if (parked.header.magic != kWireMagic) {
    desk_.refuse(parked.header, Code::kBad, "this is no message of a replay client", room);
  } else if (parked.header.length > region_.request_bytes - sizeof(Header)) {
    desk_.refuse(parked.header, Code::kBad,
                 "a request of " + std::to_string(parked.header.length) +
                     " bytes is larger than its slot",
                 room);
  } else if (parked.header.length > desk_.most_bytes()) {
    desk_.refuse(parked.header, Code::kBad, desk_.too_long(parked.header), room);
  } else {
    const uint8_t* body = request_at(base_, region_, slot) + sizeof(Header);
    if (desk_.answer(parked.header, body, parked.pending, room) == Outcome::kWait) return false;
  }
  finish(slot);
  return true;
}

// Gives the slot back to the client.
void Mapped::finish(uint32_t slot) {
  taken_ &= ~(uint64_t{1} << slot);
  SlotLine& line = head()->lines[slot];
  line.state.store(kAnswered, std::memory_order_release);
  line.answered.signal();
}

}  // namespace hocket
