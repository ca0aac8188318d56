#include "tessera/dtensor/random/draws.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <array>
#include <limits>
#include <numbers>

#include "tessera/base/errors.h"
#include "tessera/base/philox.h"
#include "tessera/base/shape.h"
#include "tessera/comm/rank_generator.h"
#include "tessera/dtensor/parts/held_indexes.h"
#include "tessera/dtensor/random/same_generator.h"

namespace tessera::dtensor {
namespace {

/// The keys that a generator of the CPU gives after `seed`, by number. Sequential use, which is the
/// common one, costs one draw a key.
class KeysOfCpu {
 public:
  uint64_t get(uint64_t seed, uint64_t number) {
    if (!generator_ || seed != seed_ || number < next_) {
      seed_ = seed;
      next_ = 0;
      generator_ = c10::make_intrusive<at::CPUGeneratorImpl>(seed);
    }
    for (; next_ < number; ++next_) generator_->random64();
    ++next_;
    return generator_->random64();
  }

 private:
  uint64_t seed_ = 0;
  uint64_t next_ = 0;
  c10::intrusive_ptr<at::CPUGeneratorImpl> generator_;
};

/// A generator of a device counts, in steps of 4, and a seed and its count determine the key. The
/// first keys are those of the CPU, so that a seed gives the same numbers on both. A generator that
/// kernels have advanced far has no counterpart there, and stepping up to its count would take
/// longer with every step.
uint64_t take_device_key(at::Generator& generator) {
  constexpr uint64_t kStep = 4;
  constexpr uint64_t kMostSteps = 1 << 20;
  const uint64_t offset = generator.get_offset();
  const uint64_t seed = generator.current_seed();
  generator.set_offset(offset + kStep);
  if (offset % kStep == 0 && offset / kStep < kMostSteps) {
    static thread_local KeysOfCpu keys;
    return keys.get(seed, offset / kStep);
  }
  const auto block = philox_block(seed, offset, 0);
  return block[0] | uint64_t{block[1]} << 32;
}

uint64_t take_key(at::Generator& generator) {
  std::lock_guard lock(generator.mutex());
  if (!generator.device().is_cpu()) return take_device_key(generator);
  return at::check_generator<at::CPUGeneratorImpl>(generator)->random64();
}

constexpr int64_t kGrain = 1 << 14;

/// Fills a dense CPU tensor: the element with global index g is computed from the kWords words of
/// the stream at g * kWords.
template <int kWords, typename T, typename Make>
void fill_on_cpu(at::Tensor& out, const HeldIndexes& held, uint64_t key, uint64_t stream,
                 Make make) {
  T* data = out.data_ptr<T>();
  at::parallel_for(0, held.size(), kGrain, [&](int64_t begin, int64_t end) {
    constexpr int64_t kChunk = 256;
    std::array<uint32_t, kChunk * kWords> words;
    held.for_runs(begin, end, [&](int64_t place, int64_t index, int64_t length) {
      for (int64_t done = 0; done < length; done += kChunk) {
        const int64_t count = std::min(kChunk, length - done);
        philox_words(key, stream, static_cast<uint64_t>(index + done) * kWords,
                     {words.data(), static_cast<size_t>(count * kWords)});
        T* to = data + place + done;
        for (int64_t i = 0; i < count; ++i) to[i] = make(&words[static_cast<size_t>(i * kWords)]);
      }
    });
  });
}

/// The low 32 bits, as a non-negative number.
at::Tensor low(const at::Tensor& x) { return x.bitwise_and(0xFFFFFFFFLL); }
at::Tensor high(const at::Tensor& x) { return low(x.bitwise_right_shift(32)); }

/// The same words for devices without a native loop: computed by int64 tensor ops, two words of an
/// element as one number.
at::Tensor words_on_device(const Sharding& sharding, c10::Device device, uint64_t key,
                           uint64_t stream, int words) {
  const auto longs = at::TensorOptions(device).dtype(at::kLong);
  at::Tensor index = at::zeros({}, longs);
  const auto stride = contiguous_stride(sharding.shape());
  for (size_t dim = 0; dim < stride.size(); ++dim) {
    std::vector<int64_t> shape(stride.size(), 1);
    shape[dim] = -1;
    const at::Tensor along = held_indexes(sharding, static_cast<int>(dim), device).view(shape);
    index = index + along * stride[dim];
  }
  const at::Tensor first = index * words;
  const at::Tensor block = first.bitwise_right_shift(2);
  at::Tensor x0 = low(block);
  at::Tensor x1 = high(block);
  at::Tensor x2 = at::zeros_like(x0).fill_(static_cast<int64_t>(stream & 0xFFFFFFFF));
  at::Tensor x3 = at::zeros_like(x0).fill_(static_cast<int64_t>(stream >> 32));
  auto key0 = static_cast<uint32_t>(key);
  auto key1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < philox::kRounds; ++round) {
    const at::Tensor p0 = x0 * static_cast<int64_t>(philox::kMultiplier0);
    const at::Tensor p1 = x2 * static_cast<int64_t>(philox::kMultiplier1);
    x0 = high(p1).bitwise_xor(x1).bitwise_xor(static_cast<int64_t>(key0));
    x2 = high(p0).bitwise_xor(x3).bitwise_xor(static_cast<int64_t>(key1));
    x1 = low(p1);
    x3 = low(p0);
    key0 += philox::kWeyl0;
    key1 += philox::kWeyl1;
  }
  const at::Tensor lane = first.bitwise_and(3);
  const at::Tensor all = at::stack({x0, x1, x2, x3});
  const at::Tensor one = all.gather(0, lane.unsqueeze(0)).squeeze(0);
  if (words == 1) return one;
  const at::Tensor two = all.gather(0, (lane + 1).unsqueeze(0)).squeeze(0);
  return one.bitwise_or(two.bitwise_left_shift(32));
}

at::Tensor empty_part(const Sharding& sharding, c10::Device device, at::ScalarType dtype) {
  const auto shape = sharding.local_shape();
  return at::empty(at::IntArrayRef(shape.data(), shape.size()),
                   at::TensorOptions(device).dtype(dtype));
}

uint64_t both(const uint32_t* words) { return words[0] | uint64_t{words[1]} << 32; }

}  // namespace

Draws::Draws(const std::optional<at::Generator>& generator, c10::Device device) : device_(device) {
  if (generator && generator->defined()) {
    generator_ = *generator;
  } else if (!device.is_meta()) {  // a planning mesh has shapes only
    generator_ = comm::default_generator(device);
  }
}

uint64_t Draws::key_for(const Sharding& sharding) {
  check_same_generator(generator_, sharding);
  if (!key_) key_ = take_key(generator_);
  return *key_;
}

at::Tensor Draws::uniform(const Sharding& sharding, at::ScalarType dtype, int bits) {
  if (device_.is_meta()) return empty_part(sharding, device_, dtype);
  const uint64_t key = key_for(sharding);
  const uint64_t stream = stream_++;
  const bool wide = dtype == at::kDouble;
  const double step = 1.0 / static_cast<double>(uint64_t{1} << bits);
  const int drop = (wide ? 64 : 32) - bits;
  if (!device_.is_cpu()) {
    const int64_t mask = (int64_t{1} << bits) - 1;  // right shifts keep the sign
    const at::Tensor words = words_on_device(sharding, device_, key, stream, wide ? 2 : 1);
    return words.bitwise_right_shift(drop).bitwise_and(mask).to(dtype).mul_(step);
  }
  at::Tensor out = empty_part(sharding, device_, dtype);
  const HeldIndexes held(sharding);
  if (wide) {
    fill_on_cpu<2, double>(out, held, key, stream, [&](const uint32_t* words) {
      return static_cast<double>(both(words) >> drop) * step;
    });
  } else {
    fill_on_cpu<1, float>(out, held, key, stream, [&, by = static_cast<float>(step)](auto* word) {
      return static_cast<float>(*word >> drop) * by;
    });
  }
  return out;
}

at::Tensor Draws::inside(const Sharding& sharding, at::ScalarType dtype) {
  // One bit less than the mantissa leaves room for the half step: (2k + 1) / 2^(bits + 1).
  const int bits = dtype == at::kDouble ? 52 : 23;
  return uniform(sharding, dtype, bits).add_(0.5 / static_cast<double>(uint64_t{1} << bits));
}

at::Tensor Draws::normal(const Sharding& sharding, at::ScalarType dtype) {
  // Box-Muller, using one of the two numbers: elements must not depend on their neighbours.
  at::Tensor radius = inside(sharding, dtype).log_().mul_(-2).sqrt_();
  const int bits = dtype == at::kDouble ? 53 : 24;
  return radius.mul_(uniform(sharding, dtype, bits).mul_(2 * std::numbers::pi).cos_());
}

at::Tensor Draws::bits(const Sharding& sharding) {
  if (device_.is_meta()) return empty_part(sharding, device_, at::kLong);
  const uint64_t key = key_for(sharding);
  const uint64_t stream = stream_++;
  if (!device_.is_cpu()) return words_on_device(sharding, device_, key, stream, 2);
  at::Tensor out = empty_part(sharding, device_, at::kLong);
  fill_on_cpu<2, int64_t>(out, HeldIndexes(sharding), key, stream,
                          [](const uint32_t* words) { return static_cast<int64_t>(both(words)); });
  return out;
}

at::Tensor Draws::below(const Sharding& sharding, uint64_t limit) {
  const at::Tensor drawn = bits(sharding);
  if (limit == 0) return drawn;
  constexpr int64_t kNoSign = std::numeric_limits<int64_t>::max();
  const auto as_signed = static_cast<int64_t>(limit);
  if (as_signed > 0) return drawn.bitwise_and(kNoSign).remainder_(as_signed);
  // More than 2^63 values: those at or above the limit, read as unsigned, are negative.
  const at::Tensor above = drawn.lt(0).logical_and_(drawn.ge(as_signed));
  return at::where(above, drawn - as_signed, drawn);
}

}  // namespace tessera::dtensor
