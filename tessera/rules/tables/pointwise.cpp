#include "tessera/rules/tables/tables.h"

/// Element-wise ops. Which partial values pass:
///
///   linear      f(a+b) = f(a)+f(b): sum and avg        affine    f(avg) = avg f, but not of sums
///   order       monotonic, and defined for all reals: max and min; order-: swaps them
///   idem        also f(x,x) = x in a constant: avg, max, min        move    anything
///
/// log, sqrt, asin and similar functions are monotonic, but not defined for all reals: max(log(-1),
/// log(5)) is NaN, so nothing passes.
namespace tessera::rules {
namespace {

constexpr TableLine kPointwiseTable[] = {
    // Two tensors.
    {"add.Tensor sub.Tensor", "*, * -> * ; linear 0+1 ; affine 0 ; affine 1 ; order 0"},
    {"rsub.Tensor", "*, * -> * ; linear 0+1 ; affine 0 ; affine 1"},
    {"mul.Tensor", "*, * -> * ; linear 0 ; linear 1"},
    {"div.Tensor true_divide.Tensor ldexp.Tensor", "*, * -> * ; linear 0"},
    {"div.Tensor_mode", "*, * -> * ; linear 0 if rounding_mode=none"},
    {"maximum max.other", "*, * -> * ; pass max,min 0 ; pass max,min 1 ; pass max 0+1"},
    {"minimum min.other", "*, * -> * ; pass max,min 0 ; pass max,min 1 ; pass min 0+1"},
    {"clamp_min.Tensor", "*, * -> * ; pass max,min 0 ; pass max,min 1 ; pass max 0+1"},
    {"clamp_max.Tensor", "*, * -> * ; pass max,min 0 ; pass max,min 1 ; pass min 0+1"},
    {"clamp.Tensor", "*, *?, *? -> * ; pass max,min 0"},
    // Not of partial values: they drop a NaN, which is the value of the whole.
    {"fmax fmin", "*, * -> *"},
    {"lerp.Scalar", "*, * -> * ; linear 0+1 ; affine 0 ; affine 1"},
    {"lerp.Tensor", "*, *, * -> * ; linear 0+1 ; affine 0 ; affine 1"},
    {"where.self", "*, *, * -> * ; move 1+2 ; idem 1 ; idem 2"},
    {"addcmul", "*, *, * -> * ; linear 0+1 ; linear 0+2 ; affine 0 ; order 0"},
    {"addcdiv", "*, *, * -> * ; linear 0+1 ; affine 0 ; order 0"},
    {"_add_relu.Tensor", "*, * -> * ; order 0"},
    {"masked_fill.Scalar", "*, * -> * ; idem 0 ; pass sum 0 if value=0"},
    {"masked_fill.Tensor", "*, *, . -> * ; idem 0 ; idem 2 ; move 0+2"},
    {"complex", "*, * -> *"},
    {"bitwise_and.Tensor",
     "*, * -> * ; pass band 0+1 ; pass band,bor,bxor 0 ; pass band,bor,bxor 1"},
    {"bitwise_or.Tensor", "*, * -> * ; pass bor 0+1 ; pass band,bor 0 ; pass band,bor 1"},
    {"bitwise_xor.Tensor", "*, * -> * ; pass bxor 0+1"},
    {"atan2 copysign.Tensor fmod.Tensor remainder.Tensor gcd lcm heaviside hypot igamma igammac "
     "nextafter logaddexp logaddexp2 xlogy.Tensor special_xlog1py special_zeta polar "
     "pow.Tensor_Tensor floor_divide float_power.Tensor_Tensor "
     "eq.Tensor ne.Tensor lt.Tensor le.Tensor gt.Tensor ge.Tensor "
     "logical_and logical_or logical_xor bitwise_left_shift.Tensor bitwise_right_shift.Tensor "
     "__lshift__.Tensor __rshift__.Tensor __and__.Tensor __or__.Tensor __xor__.Tensor "
     "special_chebyshev_polynomial_t special_chebyshev_polynomial_u special_chebyshev_polynomial_v "
     "special_chebyshev_polynomial_w special_hermite_polynomial_h special_hermite_polynomial_he "
     "special_laguerre_polynomial_l special_legendre_polynomial_p "
     "special_shifted_chebyshev_polynomial_t special_shifted_chebyshev_polynomial_u "
     "special_shifted_chebyshev_polynomial_v special_shifted_chebyshev_polynomial_w "
     "_prelu_kernel normal.Tensor_Tensor",
     "*, * -> *"},

    // A tensor and a number.
    {"add.Scalar sub.Scalar", "* -> * ; affine 0 ; order 0"},
    {"rsub.Scalar", "* -> * ; affine 0"},
    {"mul.Scalar div.Scalar true_divide.Scalar", "* -> * ; linear 0"},
    {"div.Scalar_mode", "* -> * ; linear 0 if rounding_mode=none"},
    {"clamp clamp_min clamp_max hardtanh relu relu6 floor ceil trunc round",
     "* -> * ; pass max,min 0"},
    {"tanh sigmoid exp exp2 expm1 atan asinh sinh erf hardsigmoid round.decimals special_log_ndtr "
     "_add_relu.Scalar",
     "* -> * ; order 0"},
    {"sign", "* -> *"},  // of NaN it is 0
    {"erfc", "* -> * ; order- 0"},
    {"neg _neg_view", "* -> * ; linear 0 ; order- 0"},
    {"positive deg2rad rad2deg", "* -> * ; linear 0 ; order 0"},
    {"bitwise_not", "* -> *"},
    {"bitwise_and.Scalar", "* -> * ; pass band,bor,bxor 0"},
    {"bitwise_or.Scalar", "* -> * ; pass band,bor 0"},
    {"abs acos acosh angle asin atanh cos cosh digamma erfinv frac i0 isfinite isinf isnan "
     "isneginf "
     "isposinf lgamma log log10 log1p log2 logical_not logit mish nan_to_num reciprocal rsqrt sgn "
     "signbit silu sin sinc sqrt square tan threshold celu elu gelu hardshrink hardswish "
     "leaky_relu "
     "log_sigmoid selu softplus softshrink polygamma mvlgamma rrelu "
     "special_airy_ai special_bessel_j0 special_bessel_j1 special_bessel_y0 special_bessel_y1 "
     "special_entr special_erfcx special_i0e special_i1 special_i1e special_modified_bessel_i0 "
     "special_modified_bessel_i1 special_modified_bessel_k0 special_modified_bessel_k1 "
     "special_ndtri "
     "special_scaled_modified_bessel_k0 special_scaled_modified_bessel_k1 "
     "special_spherical_bessel_j0 "
     "copysign.Scalar fmod.Scalar remainder.Scalar remainder.Scalar_Tensor xlogy.Scalar_Other "
     "xlogy.Scalar_Self special_xlog1py.other_scalar special_xlog1py.self_scalar "
     "special_zeta.other_scalar special_zeta.self_scalar pow.Tensor_Scalar pow.Scalar "
     "float_power.Tensor_Scalar float_power.Scalar floor_divide.Scalar "
     "eq.Scalar ne.Scalar lt.Scalar le.Scalar gt.Scalar ge.Scalar "
     "bitwise_xor.Scalar bitwise_and.Scalar_Tensor bitwise_or.Scalar_Tensor "
     "bitwise_xor.Scalar_Tensor "
     "bitwise_left_shift.Tensor_Scalar bitwise_left_shift.Scalar_Tensor "
     "bitwise_right_shift.Tensor_Scalar bitwise_right_shift.Scalar_Tensor "
     "__lshift__.Scalar __rshift__.Scalar __and__.Scalar __or__.Scalar __xor__.Scalar "
     "special_chebyshev_polynomial_t.x_scalar special_chebyshev_polynomial_t.n_scalar "
     "special_chebyshev_polynomial_u.x_scalar special_chebyshev_polynomial_u.n_scalar "
     "special_chebyshev_polynomial_v.x_scalar special_chebyshev_polynomial_v.n_scalar "
     "special_chebyshev_polynomial_w.x_scalar special_chebyshev_polynomial_w.n_scalar "
     "special_hermite_polynomial_h.x_scalar special_hermite_polynomial_h.n_scalar "
     "special_hermite_polynomial_he.x_scalar special_hermite_polynomial_he.n_scalar "
     "special_laguerre_polynomial_l.x_scalar special_laguerre_polynomial_l.n_scalar "
     "special_legendre_polynomial_p.x_scalar special_legendre_polynomial_p.n_scalar "
     "special_shifted_chebyshev_polynomial_t.x_scalar "
     "special_shifted_chebyshev_polynomial_t.n_scalar "
     "special_shifted_chebyshev_polynomial_u.x_scalar "
     "special_shifted_chebyshev_polynomial_u.n_scalar "
     "special_shifted_chebyshev_polynomial_v.x_scalar "
     "special_shifted_chebyshev_polynomial_v.n_scalar "
     "special_shifted_chebyshev_polynomial_w.x_scalar "
     "special_shifted_chebyshev_polynomial_w.n_scalar",
     "* -> *"},
    {"_dirichlet_grad", "*, *, * -> *"},
    {"frexp.Tensor", "* -> *, *"},
    {"log_sigmoid_forward", "* -> *, *"},

    // Copies, casts and bits. Extracting parts of a complex number is linear.
    {"clone alias detach detach_ lift lift_fresh contiguous _lazy_clone _fw_primal _pin_memory",
     "* -> * ; move 0"},
    {"_conj", "* -> * ; pass sum 0"},
    {"conj_physical _conj_physical", "* -> * ; linear 0"},
    {"zero", "* -> * ; move 0"},
    {"fill.Scalar", "* -> * ; idem 0"},
    {"zeros_like ones_like full_like empty_like", "* -> * ; ignore 0"},
    {"rand_like randn_like randint_like randint_like.low_dtype rand_like.generator "
     "randn_like.generator randint_like.generator randint_like.low_generator_dtype",
     "* -> * ; ignore 0"},
    {"fill.Tensor", "*, . -> *"},

    // Gradients: linear in the incoming one.
    {"sigmoid_backward tanh_backward threshold_backward silu_backward gelu_backward mish_backward "
     "hardtanh_backward hardsigmoid_backward hardswish_backward hardshrink_backward "
     "softshrink_backward softplus_backward leaky_relu_backward elu_backward logit_backward",
     "*, * -> * ; linear 0"},
    {"native_dropout_backward _masked_scale", "*, * -> * ; linear 0"},
    {"rrelu_with_noise_backward", "*, *, * -> * ; linear 0"},
    {"log_sigmoid_backward", "*, *, * -> * ; linear 0"},
    {"_prelu_kernel_backward", "*, *, * -> *, * ; linear 0"},
    {"glu", "* -> * ; whole $dim"},
    {"glu_backward", "*, * -> * ; whole $dim ; linear 0"},

    // Random numbers are drawn by global index (dtensor/ops/random.cpp).
    {"bernoulli bernoulli.p poisson _standard_gamma normal.Tensor_float "
     "normal.float_Tensor uniform exponential geometric cauchy log_normal random "
     "random.from "
     "random.to normal_functional normal_ bernoulli_.float",
     "* -> *"},
    {"bernoulli.Tensor binomial _standard_gamma_grad", "*, * -> *"},
    {"native_dropout", "* -> *, *"},
    {"rrelu_with_noise", "*, * -> *"},
    {"rrelu_with_noise_functional", "*, * -> *, *"},
};

}  // namespace

Table pointwise_table() { return kPointwiseTable; }

}  // namespace tessera::rules
