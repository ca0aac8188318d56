#pragma once

#include <array>
#include <cstdint>
#include <span>

/// Counter-based random numbers: Philox4x32-10 (Salmon et al., 2011). Word `i` of a stream under a
/// key is a pure function of its position, so ranks that hold different parts of a tensor draw
/// exactly what one rank would have drawn.
namespace tessera {

/// Words [first, first + out.size()) of stream `stream` under `key`.
void philox_words(uint64_t key, uint64_t stream, uint64_t first, std::span<uint32_t> out);

/// Words [4 * block, 4 * block + 4) of the stream.
std::array<uint32_t, 4> philox_block(uint64_t key, uint64_t stream, uint64_t block);

namespace philox {
// The constants of the cipher, for other implementations (on a device).
constexpr int kRounds = 10;
constexpr uint32_t kMultiplier0 = 0xD2511F53;
constexpr uint32_t kMultiplier1 = 0xCD9E8D57;
constexpr uint32_t kWeyl0 = 0x9E3779B9;
constexpr uint32_t kWeyl1 = 0xBB67AE85;
}  // namespace philox

}  // namespace tessera
