// XXH64 with seed 0, by its published specification: fast enough to hash what a disk
// delivers. Finds accidents, not forgery.
#pragma once
#include <bit>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace brigade::base {

namespace xxh {
inline constexpr uint64_t k1 = 0x9E3779B185EBCA87, k2 = 0xC2B2AE3D27D4EB4F,
                          k3 = 0x165667B19E3779F9, k4 = 0x85EBCA77C2B2AE63,
                          k5 = 0x27D4EB2F165667C5;

template <class T>
T load(const char* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}
inline uint64_t round(uint64_t lane, uint64_t input) {
  return std::rotl(lane + input * k2, 31) * k1;
}
inline uint64_t finish(uint64_t hash, const char* at, const char* end) {
  for (; end - at >= 8; at += 8)
    hash = std::rotl(hash ^ round(0, load<uint64_t>(at)), 27) * k1 + k4;
  if (end - at >= 4) {
    hash = std::rotl(hash ^ (load<uint32_t>(at) * k1), 23) * k2 + k3;
    at += 4;
  }
  for (; at < end; ++at)
    hash = std::rotl(hash ^ (static_cast<unsigned char>(*at) * k5), 11) * k1;
  hash = (hash ^ (hash >> 33)) * k2;
  hash = (hash ^ (hash >> 29)) * k3;
  return hash ^ (hash >> 32);
}
}  // namespace xxh

inline uint64_t hash64(std::string_view bytes) {
  using namespace xxh;
  const char* at = bytes.data();
  const char* end = at + bytes.size();
  uint64_t hash = k5;
  if (bytes.size() >= 32) {
    uint64_t lanes[4] = {k1 + k2, k2, 0, 0 - k1};
    for (; end - at >= 32; at += 32)
      for (int i = 0; i < 4; ++i) lanes[i] = round(lanes[i], load<uint64_t>(at + 8 * i));
    hash = std::rotl(lanes[0], 1) + std::rotl(lanes[1], 7) + std::rotl(lanes[2], 12) +
           std::rotl(lanes[3], 18);
    for (uint64_t lane : lanes) hash = (hash ^ round(0, lane)) * k1 + k4;
  }
  return finish(hash + bytes.size(), at, end);
}

}  // namespace brigade::base
