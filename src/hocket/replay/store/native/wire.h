// Messages between a replay server and its clients: a header of 64 bytes, then columns.
//
// All numbers are little-endian. A reply has the op and the request number of what it answers, but
// replies may overtake each other: what a table's limits do not allow yet waits. Bodies:
//
//            request                               reply
//   hello    nothing                               a line for each table: name, capacity, schema
//   insert   priorities if given, columns          keys
//   sample   uniforms if given                     keys, probabilities, columns: each from a
//                                                  multiple of 64 bytes on
//   update   keys, priorities                      how many were stale (uint64)
//   frames   frames                                the number of the first (uint64)
//   info     nothing                               a line for each count: name, value
//   reset    nothing                               nothing
//   save     nothing                               nothing, once it is written
//   map      a `Region`, with a file descriptor    nothing; over Unix sockets only
//   bye      nothing                               nothing, and the connection ends
//   cancel   nothing                               none: nobody waits for that request any more
//
// A reply that is not `ok` has a text that says what is the matter.

#pragma once

#include <cstdint>
#include <string>

namespace hocket {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "messages are little-endian");

constexpr uint32_t kWireMagic = 0x544b4f48;  // HOKT
constexpr uint16_t kWireVersion = 1;

enum class Op : uint16_t {
  kHello = 1,
  kInsert,
  kSample,
  kUpdate,
  kFrames,
  kInfo,
  kReset,
  kSave,
  kMap,
  kBye,
  kCancel,
};

enum class Code : uint16_t { kOk, kTimeout, kBad, kClosed };

constexpr uint32_t kHasNumbers = 1;  // priorities of an insert, uniforms of a sample
constexpr uint32_t kEvenly = 2;      // all priorities of a sample were zero

constexpr uint32_t kForever = UINT32_MAX;

struct Header {
  uint32_t magic = kWireMagic;
  uint16_t version = kWireVersion;
  Op op = Op::kHello;
  Code code = Code::kOk;
  uint16_t table = 0;
  uint32_t rows = 0;
  uint64_t request = 0;
  uint64_t schema = 0;  // `schema_hash` of the table's, so that a client of another one is refused
  uint32_t flags = 0;
  uint32_t timeout_ms = 0;  // how long the request may wait for the table's limits
  uint64_t length = 0;      // of the body
  uint64_t size = 0;        // of a reply: rows in the table
  float total = 0.0f;       // of a reply: the sum of their priorities
  uint32_t reserved = 0;
};
static_assert(sizeof(Header) == 64);

constexpr uint64_t kLeastReply = 4096;  // that there always is room for

constexpr uint64_t kAligned = 64;
inline uint64_t aligned(uint64_t bytes) { return (bytes + kAligned - 1) / kAligned * kAligned; }

// FNV-1a.
inline uint64_t schema_hash(const std::string& text) {
  uint64_t hash = 14695981039346656037ULL;
  for (const char c : text) hash = (hash ^ static_cast<uint8_t>(c)) * 1099511628211ULL;
  return hash;
}

}  // namespace hocket
