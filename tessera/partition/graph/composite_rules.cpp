#include <algorithm>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "tessera/base/iota_vector.h"
#include "tessera/partition/graph/assignment.h"
#include "tessera/partition/graph/einsum_rule.h"
#include "tessera/rules/code/keep_axes.h"
#include "tessera/rules/code/reshape.h"
#include "tessera/rules/code/written.h"
#include "tessera/rules/expand.h"
#include "tessera/rules/registry/registry.h"

/// Rules of ops that exported programs keep whole and that the dispatcher never sees, because
/// libtorch takes them apart first. The lines are those of the ops that they are made of.
namespace tessera::partition {
namespace {

using rules::Arg;
using rules::OpCall;
using rules::Rule;

constexpr std::pair<std::string_view, std::string_view> kLines[] = {
    {"layer_norm", "*X.., X..?, X..? -> *X.. ; rank X $normalized_shape"},
    {"rms_norm", "*X.., X..? -> *X.. ; rank X $normalized_shape"},
    {"group_norm", "n(gC)S.., (gC)?, (gC)? -> n(gC)S.. ; size g $num_groups ; local $num_groups g"},
    {"batch_norm", "ncS.., c?, c?, c?, c? -> ncS.. ; unless training ; nonempty"},
    {"softmax.int log_softmax.int", "* -> * ; whole $dim"},
    {"dropout", "* -> * ; unless train ; linear 0"},
    {"scaled_dot_product_attention",
     "bhqD, bhKD, bhKE, ~bhqK? -> bhqE ; unless dropout_p ; whole q if is_causal ; nonempty |"
     "bhqD, b1KD, b1KE, ~bhqK? -> bhqE ; unless dropout_p ; whole q if is_causal ; nonempty |"
     "b(hG)qD, bhKD, bhKE, ~b(hG)qK? -> b(hG)qE ; unless dropout_p ; whole q if is_causal ;"
     "if enable_gqa ; nonempty"},
    {"where.ScalarOther where.ScalarSelf", "*, * -> * ; idem 1"},
    {"where.Scalar", "* -> *"},
    {"type_as", "*, & -> *"},
    // With or without a batch: all dims before the spatial ones are independent.
    {"max_pool1d avg_pool1d adaptive_avg_pool1d", "*H -> *I ; nonempty"},
    {"max_pool2d", "*HW -> *IJ ; nonempty"},
    {"max_pool3d", "*HWD -> *IJK ; nonempty"},
    {"upsample_linear1d.vec upsample_nearest1d.vec _upsample_nearest_exact1d.vec",
     "ncH -> ncI ; linear 0 ; nonempty"},
    {"upsample_bilinear2d.vec upsample_bicubic2d.vec upsample_nearest2d.vec "
     "_upsample_nearest_exact2d.vec",
     "ncHW -> ncIJ ; linear 0 ; nonempty"},
    {"upsample_trilinear3d.vec upsample_nearest3d.vec _upsample_nearest_exact3d.vec",
     "ncHWD -> ncIJK ; linear 0 ; nonempty"},
    {"prelu", "ncs.., c -> ncs.."},
    {"bilinear", "*a, *b, oab, +o? -> *o ; linear 0 ; linear 1 ; linear 2"},
    {"outer ger", "m, n -> mn ; linear 0 ; linear 1"},
};

/// Other names of ops with a rule. Their arguments have the same names.
constexpr std::pair<std::string_view, std::string_view> kOtherNames[] = {
    {"absolute", "abs"},
    {"arccos", "acos"},
    {"arccosh", "acosh"},
    {"arcsin", "asin"},
    {"arcsinh", "asinh"},
    {"arctan", "atan"},
    {"arctan2", "atan2"},
    {"arctanh", "atanh"},
    {"broadcast_to", "expand"},
    {"clip", "clamp"},
    {"clip.Tensor", "clamp.Tensor"},
    {"concat", "cat"},
    {"concatenate", "cat"},
    {"divide.Scalar", "div.Scalar"},
    {"divide.Scalar_mode", "div.Scalar_mode"},
    {"divide.Tensor", "div.Tensor"},
    {"divide.Tensor_mode", "div.Tensor_mode"},
    {"fix", "trunc"},
    {"greater.Scalar", "gt.Scalar"},
    {"greater.Tensor", "gt.Tensor"},
    {"greater_equal.Scalar", "ge.Scalar"},
    {"greater_equal.Tensor", "ge.Tensor"},
    {"less.Scalar", "lt.Scalar"},
    {"less.Tensor", "lt.Tensor"},
    {"less_equal.Scalar", "le.Scalar"},
    {"less_equal.Tensor", "le.Tensor"},
    {"multiply.Scalar", "mul.Scalar"},
    {"multiply.Tensor", "mul.Tensor"},
    {"negative", "neg"},
    {"not_equal.Scalar", "ne.Scalar"},
    {"not_equal.Tensor", "ne.Tensor"},
    {"pad", "constant_pad_nd"},
    {"subtract.Scalar", "sub.Scalar"},
    {"subtract.Tensor", "sub.Tensor"},
    {"to.device", "_to_copy"},
    {"to.dtype", "_to_copy"},
    {"to.dtype_layout", "_to_copy"},
};

/// The line of a convolution over 1 to 3 spatial dims. Each input and each number of groups has its
/// own: an input without a batch has one dim less, and must not be taken for one with a batch.
std::string convolution(size_t spatial, bool transposed) {
  const std::string from = std::string("HWD").substr(0, spatial);
  const std::string kernel = std::string("KLM").substr(0, spatial);
  const std::string to = std::string("TUV").substr(0, spatial);
  std::string out;
  for (const std::string batch : {"n", ""}) {
    const std::string plain = batch + "i" + from + ", " + (transposed ? "io" : "oi") + kernel +
                              ", +o? -> " + batch + "o" + to +
                              " ; nonempty io ; linear 0 ; linear 1 ; ";
    out += plain + "unless groups | " + plain + "if groups=1 | ";
    out += batch + "(gI)" + from + ", " + (transposed ? "(gI)J" : "(gO)J") + kernel +
           ", (gO)? -> " + batch + "(gO)" + to + " ; size g $groups ; local $groups g";
    out += batch.empty() ? "" : " | ";
  }
  return out;
}

std::string matmul(const OpCall& call) {
  const Sharding a = rules::tensor_of(call, "self"), b = rules::tensor_of(call, "other");
  if (a.ndim() == 0 || b.ndim() == 0) return "";
  const bool vector_a = a.ndim() == 1, vector_b = b.ndim() == 1;
  const std::string left = vector_a ? "k" : vector_b ? "*k" : "*mk";
  const std::string right = vector_b ? "k" : vector_a ? "*kn" : "*kn";
  const std::string result = vector_a && vector_b ? "." : vector_a ? "*n" : vector_b ? "*" : "*mn";
  return left + ", " + right + " -> " + result + " ; linear 0 ; linear 1";
}

std::string repeat_interleave(const OpCall& call) {
  const Sharding self = rules::tensor_of(call, "self");
  const Arg* dim = call.find("dim");
  if (dim == nullptr || !std::holds_alternative<int64_t>(*dim) || self.ndim() == 0) return "";
  const std::string from = rules::letters_for(self.ndim());
  std::string to;
  for (int d = 0; d < self.ndim(); ++d) {
    const char letter = from[static_cast<size_t>(d)];
    to += d == rules::dim_of(call, "dim", self.ndim()) ? std::string("(") + letter + "Z)"
                                                       : std::string(1, letter);
  }
  return from + " -> " + to + " ; move 0";
}

std::string move_dim(const OpCall& call) {
  const int ndim = rules::tensor_of(call, "self").ndim();
  if (ndim == 0) return ". -> . ; move 0";
  const std::string from = rules::letters_for(ndim);
  std::string to = from;
  to.erase(static_cast<size_t>(rules::dim_of(call, "source", ndim)), 1);
  to.insert(static_cast<size_t>(rules::dim_of(call, "destination", ndim)), 1,
            from[static_cast<size_t>(rules::dim_of(call, "source", ndim))]);
  return from + " -> " + to + " ; move 0";
}

/// Views that need no size: the shape that results is worked out, and the local op is the same.
Rule view_to(std::string op, std::function<std::vector<int64_t>(const OpCall&)> shape_of) {
  Rule rule;
  rule.op = std::move(op);
  rule.text = "code: dims merge and split";
  rule.joint = [shape_of](const OpCall& call) {
    const Sharding self = rules::tensor_of(call, "self");
    const auto shape = shape_of(call);
    const auto order = iota_vector<int>(self.mesh().ndim());
    return rules::keep_axes(self, [&](const Sharding& at) -> rules::MaybeResults {
      auto placements = rules::reshape_placements(at, shape, order);
      if (!placements) return std::nullopt;
      return rules::MaybeResults({std::move(*placements)});
    });
  };
  return rule;
}

std::vector<int64_t> flattened(const OpCall& call) {
  const Sharding self = rules::tensor_of(call, "self");
  std::vector<int64_t> out;
  if (self.ndim() == 0) return {1};
  const auto from = static_cast<size_t>(rules::dim_of(call, "start_dim", self.ndim()));
  const int64_t last = call.int_or("end_dim", -1);
  const auto to = static_cast<size_t>(last < 0 ? last + self.ndim() : last);
  for (size_t d = 0; d < self.shape().size(); ++d) {
    if (d > from && d <= to) {
      out.back() *= self.shape()[d];
    } else {
      out.push_back(self.shape()[d]);
    }
  }
  return out;
}

std::vector<int64_t> unflattened(const OpCall& call) {
  const Sharding self = rules::tensor_of(call, "self");
  const auto dim = static_cast<size_t>(rules::dim_of(call, "dim", self.ndim()));
  std::vector<int64_t> out(self.shape().begin(), self.shape().end());
  const auto sizes = rules::complete_shape(call.ints("sizes"), out[dim]);
  out.erase(out.begin() + static_cast<std::ptrdiff_t>(dim));
  out.insert(out.begin() + static_cast<std::ptrdiff_t>(dim), sizes.begin(), sizes.end());
  return out;
}

Rule unflatten_rule() {
  Rule rule = view_to("aten::unflatten.int", unflattened);
  rule.localise.push_back(
      {"sizes",
       [](const OpCall& call, std::span<const Sharding> operands,
          std::span<const Sharding> results) -> Arg {
         const auto first = static_cast<size_t>(rules::dim_of(call, "dim", operands[0].ndim()));
         const auto count = static_cast<size_t>(results[0].ndim() - operands[0].ndim() + 1);
         const auto shape = results[0].local_shape().subspan(first, count);
         return std::vector<int64_t>(shape.begin(), shape.end());
       }});
  return rule;
}

/// chunk is a split into parts of the size that it works out; of a strided shard the local op makes
/// the same parts.
Rule chunk_rule() {
  const Rule* split = rules::find_rule("aten::split.Tensor");
  Rule rule;
  rule.op = "aten::chunk";
  rule.text = split->text;
  rule.result_count = -1;
  rule.joint = [joint = split->joint](const OpCall& call) {
    const Sharding self = rules::tensor_of(call, "self");
    const int dim = rules::dim_of(call, "dim", self.ndim());
    const int64_t size = self.shape()[static_cast<size_t>(dim)];
    const int64_t chunks = std::max<int64_t>(1, call.int_or("chunks", 1));
    const rules::NamedArg args[] = {{"self", self},
                                    {"split_size", (size + chunks - 1) / chunks},
                                    {"dim", static_cast<int64_t>(dim)}};
    return joint({"aten::split.Tensor", args, call.mesh, {}});
  };
  return rule;
}

class Composites {
 public:
  Composites() {
    for (const auto& [ops, line] : kLines) {
      for (size_t begin = 0; begin < ops.size();) {
        const size_t end = std::min(ops.find(' ', begin), ops.size());
        const std::string op = "aten::" + std::string(ops.substr(begin, end - begin));
        add(rules::make_rule(op, line));
        begin = end + 1;
      }
    }
    add(rules::written_rule("aten::matmul", "code: batches, rows, columns", matmul));
    add(rules::written_rule("aten::repeat_interleave.self_int", "code: a dim in equal parts",
                            repeat_interleave));
    add(rules::written_rule("aten::movedim.int", "code: a dim changes its place", move_dim));
    add(rules::written_rule("aten::moveaxis.int", "code: a dim changes its place", move_dim));
    for (size_t spatial = 1; spatial <= 3; ++spatial) {
      const std::string dims = std::to_string(spatial) + "d";
      for (const char* overload : {"", ".padding"}) {
        add(rules::make_rule("aten::conv" + dims + overload, convolution(spatial, false)));
      }
      add(rules::make_rule("aten::conv_transpose" + dims + (spatial == 1 ? "" : ".input"),
                           convolution(spatial, true)));
    }
    add(einsum_rule());
    add(view_to("aten::flatten.using_ints", flattened));
    add(unflatten_rule());
    add(chunk_rule());
    for (const auto& [op, of] : kOtherNames) {
      Rule rule = *rules::find_rule("aten::" + std::string(of));
      rule.op = "aten::" + std::string(op);
      add(std::move(rule));
    }
    for (const char* op : {"aten::swapaxes", "aten::swapdims"}) add(swap_rule(op));
    for (const char* op : {"aten::mT", "aten::mH", "aten::adjoint"}) add(matrix_swap_rule(op));
    for (const char* op : {"aten::numpy_T", "aten::matrix_H"}) add(reverse_rule(op));
  }

  const Rule* find(std::string_view op) const {
    const auto found = rules_.find(op);
    return found == rules_.end() ? nullptr : &found->second;
  }

 private:
  void add(Rule rule) {
    std::string op = rule.op;
    rules_.insert_or_assign(std::move(op), std::move(rule));
  }

  static Rule swap_rule(const char* op) {
    return rules::written_rule(op, "code: two dims change places", [](const OpCall& call) {
      const Sharding self = rules::tensor_of(call, "self");
      const std::string from = rules::letters_for(self.ndim());
      if (from.empty()) return std::string(". -> . ; move 0");
      std::string to = from;
      const char* names[2] = {"axis0", "axis1"};
      if (call.find("axis0") == nullptr) names[0] = "dim0", names[1] = "dim1";
      std::swap(to[static_cast<size_t>(rules::dim_of(call, names[0], self.ndim()))],
                to[static_cast<size_t>(rules::dim_of(call, names[1], self.ndim()))]);
      return from + " -> " + to + " ; move 0";
    });
  }

  static Rule matrix_swap_rule(const char* op) {
    return rules::written_rule(op, "code: the last two dims change places", [](const OpCall& call) {
      const std::string from = rules::letters_for(rules::tensor_of(call, "self").ndim());
      if (from.size() < 2) return std::string();
      std::string to = from;
      std::swap(to[to.size() - 1], to[to.size() - 2]);
      return from + " -> " + to + " ; move 0";
    });
  }

  static Rule reverse_rule(const char* op) {
    return rules::written_rule(op, "code: dims in reverse", [](const OpCall& call) {
      const std::string from = rules::letters_for(rules::tensor_of(call, "self").ndim());
      if (from.empty()) return std::string(". -> . ; move 0");
      return from + " -> " + std::string(from.rbegin(), from.rend()) + " ; move 0";
    });
  }

  std::map<std::string, Rule, std::less<>> rules_;
};

}  // namespace

const Rule* rule_of(std::string_view op) {
  static const auto* composites = new Composites();  // never destroyed: assignments refer to rules
  const Rule* own = composites->find(op);
  return own != nullptr ? own : rules::find_rule(op);
}

}  // namespace tessera::partition
