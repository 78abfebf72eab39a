#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "client.h"
#include "spin.h"

namespace hocket {
namespace {

constexpr int64_t kLookNs = 100000000;
constexpr uint64_t kLeastBytes = uint64_t{1} << 20, kMostBytes = uint64_t{1} << 42;  // for a slot
constexpr size_t kMostMappings = 32;
constexpr auto kForASlot = std::chrono::milliseconds(1);
constexpr auto kPatience = std::chrono::seconds(30);

// The size of slots for `bytes`, larger than those that exist. Memory that is not used costs
// nothing.
uint64_t grown(uint64_t before, uint64_t bytes) {
  uint64_t size = std::max(before, kLeastBytes);
  while (size < bytes) size *= 2;
  return size;
}

}  // namespace

SharedClient::Mapping::~Mapping() {
  if (base) munmap(base, region_bytes(region));
  if (bell >= 0) ::close(bell);
}

SharedClient::SharedClient(std::unique_ptr<StreamClient> control, uint32_t slots, double seconds)
    : control_(std::move(control)), slots_(slots), seconds_(seconds) {}

SharedClient::~SharedClient() = default;

void SharedClient::close() {
  closed_ = true;
  control_->close();
}

void SharedClient::check_alive() {
  if (closed_) {
    throw Gone("this connection to the replay server at " + control_->server() + " was closed");
  }
  control_->check_alive();
}

void SharedClient::ask(Call& call, const std::vector<In>& parts) {
  if (closed_) check_alive();
  call.header.length = 0;
  for (const In& part : parts) call.header.length += part.bytes;
  uint64_t reply_bytes = call.reply_bytes;
  for (const Out& out : call.outs) reply_bytes += aligned(out.bytes);
  uint32_t slot;
  Mapping* mapping =
      free_slot(sizeof(Header) + call.header.length, sizeof(Header) + reply_bytes, slot);
  call.region = mapping;
  call.slot = slot;
  uint8_t* to = request_at(mapping->base, mapping->region, slot);
  std::memcpy(to, &call.header, sizeof(Header));
  to += sizeof(Header);
  for (const In& part : parts) {
    if (part.bytes) std::memcpy(to, part.data, part.bytes);
    to += part.bytes;
  }
  RegionHead& head = *mapping->head();
  head.lines[slot].state.store(kAsked, std::memory_order_relaxed);
  {
    const std::lock_guard<std::mutex> alone(mutex_);
    const uint64_t at = head.head.load(std::memory_order_relaxed);
    head.ring[at % kMostSlots].store(slot, std::memory_order_relaxed);
    head.head.store(at + 1, std::memory_order_release);
  }
  // Pairs with the fence of a server that goes to sleep: it sees the request, or we see it asleep.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (head.asleep.load(std::memory_order_relaxed)) {
    const uint64_t one = 1;
    if (write(mapping->bell, &one, sizeof(one)) < 0) return;  // it rings already
  }
}

bool SharedClient::wait(Call& call, Clock::time_point until) {
  Mapping& mapping = *static_cast<Mapping*>(call.region);
  SlotLine& line = mapping.head()->lines[call.slot];
  const auto ready = [&] { return line.state.load(std::memory_order_acquire) == kAnswered; };
  while (!spin(ready) && line.answered.wait(ready, 0, kLookNs) == Wait::kTimeout) {
    try {
      check_alive();
    } catch (const Gone&) {
      if (!ready()) throw;
    }
    if (Clock::now() >= until && !ready()) return false;
  }
  const uint8_t* from = reply_at(mapping.base, mapping.region, call.slot);
  std::memcpy(&call.header, from, sizeof(Header));
  from += sizeof(Header);
  const uint64_t length =
      std::min(call.header.length, mapping.region.reply_bytes - sizeof(Header));
  call.is_done = true;
  if (call.header.code == Code::kOk && call.reply_bytes && call.outs.empty()) {
    call.body = const_cast<uint8_t*>(from);
    const std::lock_guard<std::mutex> alone(mutex_);
    ++stayed_;
    return true;
  }
  if (call.header.code == Code::kOk && !call.outs.empty()) {
    for (const Out& out : call.outs) {
      if (out.bytes) std::memcpy(out.data, from, out.bytes);
      from += aligned(out.bytes);
    }
  } else {
    call.text.assign(reinterpret_cast<const char*>(from), length);
  }
  give_back(mapping, call.slot);
  return true;
}

void SharedClient::abandon(Call& call) {
  if (call.is_done) return;
  Mapping& mapping = *static_cast<Mapping*>(call.region);
  uint32_t state = kAsked;
  mapping.head()->lines[call.slot].state.compare_exchange_strong(state, kAbandoned);
  const std::lock_guard<std::mutex> alone(mutex_);
  mapping.abandoned |= uint64_t{1} << call.slot;
}

void SharedClient::release(Call& call) {
  {
    const std::lock_guard<std::mutex> alone(mutex_);
    --stayed_;
  }
  call.body = nullptr;
  give_back(*static_cast<Mapping*>(call.region), call.slot);
}

// Half of the slots must be left for requests.
bool SharedClient::may_stay() {
  const std::lock_guard<std::mutex> alone(mutex_);
  return 2 * stayed_ < slots_;
}

void SharedClient::give_back(Mapping& mapping, uint32_t slot) {
  mapping.head()->lines[slot].state.store(kIdle, std::memory_order_relaxed);
  const std::lock_guard<std::mutex> alone(mutex_);
  mapping.free |= uint64_t{1} << slot;
  freed_.notify_all();
}

SharedClient::Mapping* SharedClient::free_slot(uint64_t request_bytes, uint64_t reply_bytes,
                                               uint32_t& slot) {
  const auto find = [&]() -> Mapping* {
    for (const auto& mapping : mappings_) {
      for (uint64_t left = mapping->abandoned; left; left &= left - 1) {
        const auto at = static_cast<uint32_t>(__builtin_ctzll(left));
        if (mapping->head()->lines[at].state.load(std::memory_order_acquire) != kAnswered) continue;
        mapping->abandoned &= ~(uint64_t{1} << at);
        mapping->free |= uint64_t{1} << at;
      }
      if (!mapping->free || mapping->region.request_bytes < request_bytes ||
          mapping->region.reply_bytes < reply_bytes) {
        continue;
      }
      slot = static_cast<uint32_t>(__builtin_ctzll(mapping->free));
      mapping->free &= mapping->free - 1;
      return mapping.get();
    }
    return nullptr;
  };
  if (std::max(request_bytes, reply_bytes) > kMostBytes) {
    throw Refused("a message of " + std::to_string(std::max(request_bytes, reply_bytes)) +
                  " bytes is too large");
  }
  const auto end = Clock::now() + kPatience;
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    if (Mapping* found = find()) return found;
    const bool fits = std::any_of(mappings_.begin(), mappings_.end(), [&](const auto& mapping) {
      return mapping->region.request_bytes >= request_bytes &&
             mapping->region.reply_bytes >= reply_bytes;
    });
    const bool freed = fits && freed_.wait_for(lock, kForASlot) == std::cv_status::no_timeout;
    if (freed) continue;
    if (!fits || mappings_.size() < kMostMappings) {
      lock.unlock();
      map(request_bytes, reply_bytes);
      lock.lock();
      continue;
    }
    check_alive();
    if (Clock::now() >= end) {
      throw Refused(std::to_string(slots_ * kMostMappings) + " requests and batches of this "
                    "connection are in use already");
    }
  }
}

// Makes one more region, with slots of at least these sizes.
void SharedClient::map(uint64_t request_bytes, uint64_t reply_bytes) {
  const std::lock_guard<std::mutex> one_at_a_time(mapping_);
  auto made = std::make_unique<Mapping>();
  Region& region = made->region;
  {
    const std::lock_guard<std::mutex> alone(mutex_);
    for (const auto& mapping : mappings_) {  // no smaller than earlier ones
      region.request_bytes = std::max(region.request_bytes, mapping->region.request_bytes);
      region.reply_bytes = std::max(region.reply_bytes, mapping->region.reply_bytes);
    }
  }
  region.request_bytes = grown(region.request_bytes, request_bytes);
  region.reply_bytes = grown(region.reply_bytes, reply_bytes);
  region.slots = slots_;
  const int memory = memfd_create("hocket-replay", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (memory < 0 || ftruncate(memory, static_cast<off_t>(region_bytes(region))) ||
      fcntl(memory, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW)) {
    const int error = errno;
    if (memory >= 0) ::close(memory);
    throw Gone("no memory to share with a replay server: " + std::string(std::strerror(error)));
  }
  void* base =
      mmap(nullptr, region_bytes(region), PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
  if (base != MAP_FAILED) made->base = base;
  made->bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  Call call;
  call.header.op = Op::kMap;
  bool answered = false;
  try {
    if (base == MAP_FAILED || made->bell < 0) throw Gone("no memory to share: mmap failed");
    control_->ask_with(call, {&region, sizeof(region)}, {memory, made->bell});
    answered = control_->wait(call, after(seconds_));
  } catch (...) {
    ::close(memory);
    throw;
  }
  ::close(memory);
  if (!answered) {
    control_->abandon(call);
    close();
    throw Gone("the replay server at " + control_->server() + " gave no answer for " +
               text(seconds_) + " s");
  }
  if (call.header.code != Code::kOk) throw Refused(call.text);
  made->free = region.slots == 64 ? ~uint64_t{0} : (uint64_t{1} << region.slots) - 1;
  const std::lock_guard<std::mutex> alone(mutex_);
  mappings_.push_back(std::move(made));
}

}  // namespace hocket
