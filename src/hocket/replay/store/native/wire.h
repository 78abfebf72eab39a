// Messages between a replay server and its clients: a header of 64 bytes, then columns.
//
// All numbers are little-endian. A reply has the op and the number of its request. Replies may
// overtake each other, because a request that a table's rate limits do not allow yet waits. Bodies:
//
//            request                               reply
//   hello    nothing                               a line for each table: name, capacity, schema
//   insert   priorities if given, columns          keys
//   sample   uniforms if given                     keys, probabilities, columns, each at a
//                                                  multiple of 64 bytes
//   update   keys, priorities                      how many were stale (uint64)
//   frames   frames                                the number of the first frame (uint64)
//   info     nothing                               a line for each count: name, value
//   reset    nothing                               nothing
//   save     nothing                               nothing, when the file is written
//   map      a `Region`, with a file descriptor    nothing; over Unix sockets only
//   bye      nothing                               nothing, and the connection ends
//   cancel   nothing                               no reply, and none to the request of that number
//
// A reply that is not `ok` has the text of an error.

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

constexpr uint32_t kHasNumbers = 1;  // an insert has priorities, a sample uniforms
constexpr uint32_t kEvenly = 2;      // all priorities in the table were zero

constexpr uint32_t kForever = UINT32_MAX;

struct Header {
  uint32_t magic = kWireMagic;
  uint16_t version = kWireVersion;
  Op op = Op::kHello;
  Code code = Code::kOk;
  uint16_t table = 0;
  uint32_t rows = 0;
  uint64_t request = 0;
  uint64_t schema = 0;  // `schema_hash` of the table, so that clients of another one are refused
  uint32_t flags = 0;
  uint32_t timeout_ms = 0;  // how long the request may wait for the table's rate limits
  uint64_t length = 0;      // of the body
  uint64_t size = 0;        // in a reply: the number of rows in the table
  float total = 0.0f;       // in a reply: the sum of their priorities
  uint32_t reserved = 0;
};
static_assert(sizeof(Header) == 64);

constexpr uint64_t kLeastReply = 4096;  // there is always room for a reply of this size

constexpr uint64_t kAligned = 64;
inline uint64_t aligned(uint64_t bytes) { return (bytes + kAligned - 1) / kAligned * kAligned; }

// FNV-1a.
inline uint64_t schema_hash(const std::string& text) {
  uint64_t hash = 14695981039346656037ULL;
  for (const char c : text) hash = (hash ^ static_cast<uint8_t>(c)) * 1099511628211ULL;
  return hash;
}

}  // namespace hocket
