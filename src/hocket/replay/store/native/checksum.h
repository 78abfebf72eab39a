// CRC-32C (Castagnoli), eight bytes at a time from tables.

#pragma once

#include <array>
#include <cstdint>
#include <cstring>

namespace hocket {

inline uint32_t checksum(const void* data, uint64_t bytes, uint32_t crc = 0) {
  using Tables = std::array<std::array<uint32_t, 256>, 8>;
  static const Tables tables = [] {
    Tables made{};
    for (uint32_t i = 0; i < 256; ++i) {
      uint32_t value = i;
      for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ (value & 1 ? 0x82f63b78u : 0u);
      made[0][i] = value;
    }
    for (size_t t = 1; t < 8; ++t) {
      for (size_t i = 0; i < 256; ++i) {
        made[t][i] = (made[t - 1][i] >> 8) ^ made[0][made[t - 1][i] & 0xff];
      }
    }
    return made;
  }();
  const auto* from = static_cast<const uint8_t*>(data);
  crc = ~crc;
  for (; bytes >= 8; bytes -= 8, from += 8) {
    uint64_t word;
    std::memcpy(&word, from, 8);
    word ^= crc;
    crc = 0;
    for (size_t t = 0; t < 8; ++t) crc ^= tables[7 - t][(word >> (8 * t)) & 0xff];
  }
  for (; bytes; --bytes, ++from) crc = (crc >> 8) ^ tables[0][(crc ^ *from) & 0xff];
  return ~crc;
}

}  // namespace hocket
