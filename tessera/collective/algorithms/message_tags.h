#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

/// The use of Gloo's message tags: both sides must pass the same one, so the tag encodes what the
/// call is, and ranks in different calls do not take each other's bytes (transport/gloo.h).
namespace tessera::comm::message_tags {

/// A collective of Gloo's own: 32 bits. 14 of the sequence number, 16 of the call's digest, 2
/// unused because Gloo increments the tag inside some calls.
inline constexpr int kSequenceShift = 18;
inline constexpr int kDigestShift = 2;

inline uint32_t collective(uint32_t sequence, uint32_t digest) {
  return (sequence & 0x3fff) << kSequenceShift | (digest & 0xffff) << kDigestShift;
}

/// A message between two ranks: a non-negative int. Bit 30 marks tags made here.
///   send, recv           bit 29 clear, 17 bits of the piece's hash, 12 bits of the user's tag
///   piece of an exchange bit 29 set, 11 bits of the sequence number, 18 of the hash of both the
///                        call and the piece
inline constexpr int kMarked = 1 << 30;
inline constexpr int kExchange = 1 << 29;
inline constexpr int kUserBits = 12;
inline constexpr int kPieceBits = 18;

inline uint32_t piece_hash(const at::Tensor& piece, uint32_t call, int bits) {
  const uint64_t key = static_cast<uint64_t>(piece.numel()) << 24 ^
                       static_cast<uint64_t>(piece.scalar_type()) << 16 ^ call;
  return static_cast<uint32_t>((key * 0x9e3779b97f4a7c15ULL) >> (64 - bits));
}

/// A user's tag of 4096 or more is passed unchanged, without the mark.
inline int message(int tag, const at::Tensor& piece) {
  if (tag < 0 || tag >= (1 << kUserBits)) return tag;
  const auto hash = static_cast<int>(piece_hash(piece, 0, 29 - kUserBits));
  return kMarked | hash << kUserBits | tag;
}

/// `call` is the collective tag of the whole exchange; its rounds get different tags.
inline int exchange(uint32_t call, const at::Tensor& piece, int round) {
  const auto sequence = static_cast<int>(call >> kSequenceShift & 0x7ff);
  const uint32_t digest = (call >> kDigestShift & 0xffff) + static_cast<uint32_t>(round);
  return kMarked | kExchange | sequence << kPieceBits |
         static_cast<int>(piece_hash(piece, digest, kPieceBits));
}

}  // namespace tessera::comm::message_tags
