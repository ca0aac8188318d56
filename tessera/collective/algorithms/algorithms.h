#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <vector>

#include "tessera/collective/algorithms/exchange.h"
#include "tessera/collective/algorithms/pipelined_pack.h"

/// The collectives implemented on exchange.h, as the steps of each rank: begin() posts what can be
/// posted immediately, finish() does the rest and returns when the outputs are complete. All
/// tensors are contiguous, on the CPU and of one dtype.
namespace tessera::comm {

class Algorithm {
 public:
  using Tensors = std::vector<at::Tensor>;

  virtual ~Algorithm() = default;
  virtual void begin(Exchange& exchange) = 0;
  virtual void finish(Exchange& exchange) = 0;

  c10d::OpType type = c10d::OpType::UNKNOWN;
  const char* title = "";
  Tensors inputs;
  Tensors outputs;
};

/// all_gather, all_to_all: `give[j]` is sent to rank j, `take[j]` received from it. Directly from
/// tensor to tensor; Gloo's own all_gather uses a flat copy.
class MoveAlgorithm final : public Algorithm {
 public:
  /// Pieces are sent in chunks if a peer may use a PackAlgorithm.
  struct Options {
    bool in_chunks = false;
  };

  MoveAlgorithm(Tensors give, Tensors take, const Options& options = {false})
      : give_(std::move(give)), take_(std::move(take)), options_(options) {}
  void begin(Exchange& exchange) override;
  void finish(Exchange& exchange) override;

 private:
  Tensors give_;
  Tensors take_;
  Options options_;
};

/// all_to_all of pieces that are packed while they are sent, in chunks that rotate through a few
/// buffers that stay in the cache. Its messages match those of a MoveAlgorithm in chunks.
class PackAlgorithm final : public Algorithm {
 public:
  PackAlgorithm(Unpacked give, Tensors take);
  void begin(Exchange& exchange) override;
  void finish(Exchange& exchange) override;

 private:
  struct Chunk {
    int to = 0;         // rank
    int64_t begin = 0;  // in the virtual send buffer, in elements
    int64_t count = 0;
    int round = 0;
  };
  int64_t element_bytes() const { return static_cast<int64_t>(take_[0].element_size()); }
  void list_chunks(const Exchange& exchange);
  void pack_and_send(Exchange& exchange, size_t k);

  Unpacked give_;
  Tensors take_;
  std::vector<Chunk> chunks_;                // in sending order
  Tensors buffers_;                          // chunk k uses buffer k % buffers
  std::vector<Exchange::Message*> leaving_;  // by buffer
};

/// Several algorithms as one call: the coalesced forms. All post their first messages before one is
/// finished; they are finished in the same order on every rank.
class AlgorithmList final : public Algorithm {
 public:
  explicit AlgorithmList(std::vector<std::unique_ptr<Algorithm>> jobs);
  void begin(Exchange& exchange) override;
  void finish(Exchange& exchange) override;

 private:
  std::vector<std::unique_ptr<Algorithm>> jobs_;
};

/// reduce_scatter and all_reduce. Every rank receives its part from each other one and reduces it
/// in rank order, which gives the same bits as thread ranks. An all_reduce then distributes the
/// reduced parts; in a small one every rank reduces everything instead, in one round trip.
///
/// Large parts are sent in chunks: while one is reduced, the next ones are in flight.
class ReduceAlgorithm final : public Algorithm {
 public:
  struct Parts {
    Tensors give;           ///< to each rank, its part of my addends; give[me] is my own
    at::Tensor result;      ///< my part, reduced
    Tensors shared;         ///< destinations of the other ranks' results; empty: none
    bool in_place = false;  ///< results overwrite addends
  };

  ReduceAlgorithm(Parts parts, c10d::ReduceOp::RedOpType op) : parts_(std::move(parts)), op_(op) {}

  /// The parts of an all_reduce of `in` into `out`, which may be the same tensor.
  static Parts all_reduce_parts(const at::Tensor& in, const at::Tensor& out, int rank, int size);

  void begin(Exchange& exchange) override;
  void finish(Exchange& exchange) override;

 private:
  at::Tensor chunk_of(const at::Tensor& part, int64_t k) const;
  void post(Exchange& exchange, int64_t k);
  void reduce(Exchange& exchange, int64_t k);

  Parts parts_;
  c10d::ReduceOp::RedOpType op_;
  int64_t chunk_ = 0;   // in elements
  int64_t chunks_ = 0;  // of the largest part
  int64_t window_ = 0;  // chunks in flight at a time
  Tensors landing_;     // one per rank: receive buffer for a window of chunks
  std::vector<std::vector<Exchange::Message*>> arriving_;  // by chunk in the window, by rank
  std::vector<std::vector<Exchange::Message*>> leaving_;
};

}  // namespace tessera::comm
