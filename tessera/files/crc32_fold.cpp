#include "tessera/files/crc32_fold.h"

#include "tessera/base/errors.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include <array>

namespace tessera::files {
namespace {

// x^n modulo the polynomial, bits reversed: the multiplier that moves a 64-bit half n bits ahead.
constexpr std::array<uint64_t, 2> kAhead512 = {0x0154442bd4, 0x01c6e41596};
constexpr std::array<uint64_t, 2> kAhead128 = {0x01751997d0, 0x00ccaa009e};
constexpr std::array<uint64_t, 2> kAhead64 = {0x0163cd6124, 0};
constexpr std::array<uint64_t, 2> kPolynomial = {0x01db710641, 0x01f7011641};  // and its inverse

__m128i load(const void* from) { return _mm_loadu_si128(static_cast<const __m128i*>(from)); }

[[gnu::target("pclmul,sse4.1")]] __m128i fold(__m128i value, __m128i ahead, __m128i next) {
  const __m128i low = _mm_clmulepi64_si128(value, ahead, 0x00);
  const __m128i high = _mm_clmulepi64_si128(value, ahead, 0x11);
  return _mm_xor_si128(_mm_xor_si128(low, high), next);
}

/// Reduces 128 bits to the 32 of the register, by Barrett reduction.
[[gnu::target("pclmul,sse4.1")]] uint32_t reduce(__m128i value) {
  const __m128i low_words = _mm_setr_epi32(~0, 0, ~0, 0);
  value = _mm_xor_si128(_mm_srli_si128(value, 8),
                        _mm_clmulepi64_si128(value, load(kAhead128.data()), 0x10));
  value = _mm_xor_si128(
      _mm_srli_si128(value, 4),
      _mm_clmulepi64_si128(_mm_and_si128(value, low_words), load(kAhead64.data()), 0x00));
  const __m128i polynomial = load(kPolynomial.data());
  __m128i quotient = _mm_clmulepi64_si128(_mm_and_si128(value, low_words), polynomial, 0x10);
  quotient = _mm_clmulepi64_si128(_mm_and_si128(quotient, low_words), polynomial, 0x00);
  return static_cast<uint32_t>(_mm_extract_epi32(_mm_xor_si128(value, quotient), 1));
}

}  // namespace

bool has_crc32_fold() {
  static const bool has = __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
  return has;
}

[[gnu::target("pclmul,sse4.1")]] uint32_t crc32_fold(std::span<const std::byte> bytes,
                                                     uint32_t state) {
  ensure(bytes.size() >= 64 && bytes.size() % 16 == 0,
         "crc32_fold of a length that is no multiple of 16, or under 64");
  const std::byte* at = bytes.data();
  const std::byte* const end = at + bytes.size();
  __m128i parts[4];
  for (int i = 0; i < 4; ++i) parts[i] = load(at + 16 * i);
  parts[0] = _mm_xor_si128(parts[0], _mm_cvtsi32_si128(static_cast<int>(state)));
  at += 64;
  const __m128i ahead512 = load(kAhead512.data());
  for (; end - at >= 64; at += 64) {
    for (int i = 0; i < 4; ++i) parts[i] = fold(parts[i], ahead512, load(at + 16 * i));
  }
  const __m128i ahead128 = load(kAhead128.data());
  __m128i value = parts[0];
  for (int i = 1; i < 4; ++i) value = fold(value, ahead128, parts[i]);
  for (; at < end; at += 16) value = fold(value, ahead128, load(at));
  return reduce(value);
}

}  // namespace tessera::files

#else

namespace tessera::files {

bool has_crc32_fold() { return false; }

uint32_t crc32_fold(std::span<const std::byte>, uint32_t state) {
  ensure(false, "crc32_fold on a machine without carry-less products");
  return state;
}

}  // namespace tessera::files

#endif
