#include <algorithm>

#include "tessera/rules/code/code_rules.h"
#include "tessera/rules/code/written.h"

/// Products and distances whose letters depend on the arguments.
namespace tessera::rules {
namespace {

/// The product of three tensors, each without the dims that it is expanded to; some dims are summed
/// over.
std::string trilinear(const OpCall& call) {
  const Sharding first = tensor_of(call, "i1");
  const auto ndim = static_cast<int>(call.ints("expand1").size()) + first.ndim();
  const std::string all = letters_for(ndim);
  const auto without = [&](const char* attribute) {
    const auto gone = call.ints(attribute);
    std::string out;
    for (int d = 0; d < ndim; ++d) {
      if (std::ranges::find(gone, d) == gone.end()) out += all[static_cast<size_t>(d)];
    }
    return out.empty() ? std::string(".") : out;
  };
  return without("expand1") + ", " + without("expand2") + ", " + without("expand3") + " -> " +
         without("sumdim") + " ; linear 0 ; linear 1 ; linear 2 ; nonempty";
}

/// For empty comparisons libtorch returns zeros of x1's shape; otherwise the gradient has the
/// broadcast shape of x1.
std::string cdist_backward(const OpCall& call) {
  const Sharding grad = tensor_of(call, "grad"), x1 = tensor_of(call, "x1");
  const auto is_zero = [](int64_t size) { return size == 0; };
  if (std::ranges::any_of(grad.shape(), is_zero) || is_zero(x1.shape().back())) {
    return "G.., X.., Y.., D.. -> X..";
  }
  return "*mn, *mK, *nK, *mn -> *mK ; linear 0 ; nonempty";
}

}  // namespace

std::vector<Rule> product_rules() {
  return {
      written_rule("aten::_trilinear", "code: by the dims that are expanded and summed", trilinear),
      written_rule("aten::_cdist_backward", "code: batches and rows of x1", cdist_backward),
  };
}

}  // namespace tessera::rules
