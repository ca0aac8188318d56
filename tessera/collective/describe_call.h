#pragma once

#include <torch/csrc/distributed/c10d/Types.hpp>
#include <vector>

#include "tessera/collective/call_info.h"

/// Creates a CallInfo from the arguments of any of c10d's collectives.
namespace tessera::comm {

struct InPlace {};  ///< instead of outputs, for collectives that overwrite their inputs

namespace describing {

inline void add(CallInfo& call, ShapeList& shapes, int64_t& bytes, const at::Tensor& t) {
  if (!t.defined()) return;  // the backend reports the error
  if (call.dtype == c10::ScalarType::Undefined) call.dtype = t.scalar_type();
  call.lazy_view |= t.is_conj() || t.is_neg();
  shapes.add(t.sizes());
  bytes += t.numel() * static_cast<int64_t>(t.element_size());
}

template <typename T>
void add(CallInfo& call, ShapeList& shapes, int64_t& bytes, const std::vector<T>& list) {
  for (const T& item : list) add(call, shapes, bytes, item);
}

inline void add(CallInfo&, ShapeList&, int64_t&, InPlace) {}

}  // namespace describing

template <typename In, typename Out, typename Options>
CallInfo describe(Collective what, const In& in, const Out& out, const Options& options) {
  CallInfo call;
  call.what = what;
  if constexpr (requires { options.reduceOp; }) {
    call.reduce = static_cast<int8_t>(options.reduceOp.op_);
  }
  if constexpr (requires { options.rootRank; }) call.root = static_cast<int>(options.rootRank);
  call.async = options.asyncOp;
  call.in_place = std::is_same_v<Out, InPlace>;
  describing::add(call, call.in, call.bytes_in, in);
  describing::add(call, call.out, call.bytes_out, out);
  return call;
}

/// Point to point: the tensors are an input of send and an output of recv.
inline CallInfo describe_peer(Collective what, const std::vector<at::Tensor>& tensors, int peer,
                              int tag) {
  CallInfo call;
  call.what = what;
  call.peer = peer;
  call.tag = tag;
  call.async = true;
  if (what == Collective::send) {
    describing::add(call, call.in, call.bytes_in, tensors);
  } else {
    describing::add(call, call.out, call.bytes_out, tensors);
  }
  return call;
}

}  // namespace tessera::comm
