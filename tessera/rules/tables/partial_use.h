#pragma once

#include <cstdint>
#include <string_view>

/// What ops do with Partial operands, beyond their rows. The rows say which Partial operands an op
/// accepts; this says for a few families whether to keep them in backward, where gradients are
/// accumulated as Partial and reduced once (dtensor/kernels/use_kernel.h).
namespace tessera::rules {

enum class PartialUse : uint8_t {
  by_rows,  ///< as the rows say; in backward a gradient is reduced before it is multiplied
  sum,      ///< adds or copies tensors: what is Partial stays so in backward
  product,  ///< a matrix product: as the rows say, in backward too
  matmul,   ///< a product of matrices that flattens its operands first: each call would reduce a
            ///< new view, so the operand itself is reduced
};

/// By the op's name without overload: "aten::add_".
PartialUse partial_use(std::string_view op);

}  // namespace tessera::rules
