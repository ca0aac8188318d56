#include "tessera/files/crc32_fold.h"

#include "tessera/base/errors.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include <array>

namespace tessera::files {
namespace {

// x^n modulo the polynomial, bits reversed: the multiplier that moves a 64-bit half n bits ahead.
constexpr std::array<uint64_t, 2> kAhead2048 = {0x011542778a, 0x01322d1430};
constexpr std::array<uint64_t, 2> kAhead512 = {0x0154442bd4, 0x01c6e41596};
constexpr std::array<uint64_t, 2> kAhead128 = {0x01751997d0, 0x00ccaa009e};
constexpr std::array<uint64_t, 2> kAhead64 = {0x0163cd6124, 0};
constexpr std::array<uint64_t, 2> kPolynomial = {0x01db710641, 0x01f7011641};  // and its inverse

constexpr size_t kWide = 256;  // bytes per step of fold_to_parts

__m128i load(const void* from) { return _mm_loadu_si128(static_cast<const __m128i*>(from)); }

[[gnu::target("pclmul,sse4.1")]] __m128i fold(__m128i value, __m128i ahead, __m128i next) {
  const __m128i low = _mm_clmulepi64_si128(value, ahead, 0x00);
  const __m128i high = _mm_clmulepi64_si128(value, ahead, 0x11);
  return _mm_xor_si128(_mm_xor_si128(low, high), next);
}

[[gnu::target("avx512f")]] __m512i four_times(const std::array<uint64_t, 2>& ahead) {
  const auto low = static_cast<int64_t>(ahead[0]);
  const auto high = static_cast<int64_t>(ahead[1]);
  return _mm512_set4_epi64(high, low, high, low);
}

[[gnu::target("avx512f,vpclmulqdq")]] __m512i fold_wide(__m512i value, __m512i ahead,
                                                        __m512i next) {
  const __m512i low = _mm512_clmulepi64_epi128(value, ahead, 0x00);
  const __m512i high = _mm512_clmulepi64_epi128(value, ahead, 0x11);
  return _mm512_ternarylogic_epi64(low, high, next, 0x96);  // of three: exclusive or
}

bool has_wide_fold() {
  static const bool has = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("vpclmulqdq");
  return has;
}

/// The same as four parts of 16 bytes do, with four times as many in a step. Folds a multiple of
/// 256 bytes, at least that, into 64.
[[gnu::target("avx512f,vpclmulqdq")]] void fold_to_parts(std::span<const std::byte> bytes,
                                                         uint32_t state, __m128i (&parts)[4]) {
  const std::byte* at = bytes.data();
  const std::byte* const end = at + bytes.size();
  __m512i wide[4];
  for (int i = 0; i < 4; ++i) wide[i] = _mm512_loadu_si512(at + 64 * i);
  wide[0] =
      _mm512_xor_si512(wide[0], _mm512_zextsi128_si512(_mm_cvtsi32_si128(static_cast<int>(state))));
  const __m512i ahead2048 = four_times(kAhead2048);
  for (at += 256; at < end; at += 256) {
    for (int i = 0; i < 4; ++i) {
      wide[i] = fold_wide(wide[i], ahead2048, _mm512_loadu_si512(at + 64 * i));
    }
  }
  const __m512i ahead512 = four_times(kAhead512);
  __m512i value = wide[0];
  for (int i = 1; i < 4; ++i) value = fold_wide(value, ahead512, wide[i]);
  _mm512_storeu_si512(parts, value);
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
         "crc32_fold of a length that is not a multiple of 16, or under 64");
  const std::byte* at = bytes.data();
  const std::byte* const end = at + bytes.size();
  __m128i parts[4];
  if (bytes.size() >= kWide && has_wide_fold()) {
    const auto wide = bytes.first(bytes.size() - bytes.size() % kWide);
    fold_to_parts(wide, state, parts);
    at += wide.size();
  } else {
    for (int i = 0; i < 4; ++i) parts[i] = load(at + 16 * i);
    parts[0] = _mm_xor_si128(parts[0], _mm_cvtsi32_si128(static_cast<int>(state)));
    at += 64;
  }
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
