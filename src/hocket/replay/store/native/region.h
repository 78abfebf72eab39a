// Memory that a client shares with its server: slots, each with a request and a reply.
//
// The client makes the memory, a sealed memfd, and sends it over a Unix socket, with an eventfd
// that wakes the server. So the memory is gone when the client is. A slot belongs to the client,
// except between its request and the reply. To ask, the client puts the slot's number into the
// ring. Replies come in any order. The client reuses a slot when it no longer needs the reply.

#pragma once

#include <atomic>
#include <cstdint>

#include "../../../system/native/event.h"
#include "wire.h"

namespace hocket {

constexpr uint32_t kMostSlots = 64;

// The sizes of a region, as they are sent.
struct Region {
  uint64_t request_bytes = 0;  // the room for a request in each slot, with its header
  uint64_t reply_bytes = 0;
  uint32_t slots = 0;
  uint32_t reserved = 0;
};
static_assert(sizeof(Region) == 24);

enum SlotState : uint32_t { kIdle, kAsked, kAnswered, kAbandoned };

struct alignas(kLine) SlotLine {
  Event answered;
  alignas(kLine) std::atomic<uint32_t> state;
};

struct RegionHead {
  alignas(kLine) std::atomic<uint32_t> asleep;  // the server sleeps, and wants to be woken
  alignas(kLine) std::atomic<uint64_t> head;    // the number of requests so far
  alignas(kLine) std::atomic<uint32_t> ring[kMostSlots];
  SlotLine lines[kMostSlots];
};

inline uint64_t slot_bytes(const Region& region) {
  return aligned(region.request_bytes) + aligned(region.reply_bytes);
}

inline uint64_t region_bytes(const Region& region) {
  return sizeof(RegionHead) + region.slots * slot_bytes(region);
}

inline uint8_t* request_at(void* base, const Region& region, uint32_t slot) {
  return static_cast<uint8_t*>(base) + sizeof(RegionHead) + slot * slot_bytes(region);
}

inline uint8_t* reply_at(void* base, const Region& region, uint32_t slot) {
  return request_at(base, region, slot) + aligned(region.request_bytes);
}

}  // namespace hocket
