#include "tessera/rules/tables/tables.h"

/// Reductions of dims. A sharded one leaves partial values if the reduction can be done in parts;
/// if not, it needs a kernel of its own (variance, argmax) or must not be sharded (median).
///
/// A mean of uneven parts is Partial(avg) too: each rank's mean is weighted by its size
/// (Rule::scale).
namespace tessera::rules {
namespace {

constexpr TableLine kReductionTable[] = {
    {"sum sum.dim_IntList", "* -> * ; reduce $dim sum ; linear 0"},
    {"nansum count_nonzero count_nonzero.dim_IntList linalg__powsum", "* -> * ; reduce $dim sum"},
    {"mean mean.dim", "* -> * ; reduce $dim avg ; linear 0"},
    {"amax", "* -> * ; reduce $dim max ; nonempty $dim ; pass max 0"},
    {"amin", "* -> * ; reduce $dim min ; nonempty $dim ; pass min 0"},
    {"max", "* -> * ; reduce $dim max ; nonempty $dim ; pass max 0"},
    {"min", "* -> * ; reduce $dim min ; nonempty $dim ; pass min 0"},
    {"prod prod.dim_int", "* -> * ; reduce $dim product ; pass product 0"},
    {"any any.dim any.dims _is_any_true", "* -> * ; reduce $dim max"},
    {"all all.dim all.dims _is_all_true", "* -> * ; reduce $dim min"},
    {"logsumexp", "* -> * ; drop $dim ; kernel logsumexp"},
    {"argmax argmin", "* -> * ; drop $dim ; kernel extreme"},
    {"median nanmedian", "X.. -> ."},
    {"_aminmax", "X.. -> ., ."},
    {"var.correction std.correction", "* -> *!* ; kernel moments $dim"},
    {"var_mean.correction std_mean.correction", "* -> *!*, *!* ; kernel moments $dim"},
    {"max.dim min.dim", "* -> *, * ; drop $dim ; kernel extreme"},
    {"median.dim nanmedian.dim mode kthvalue aminmax _aminmax.dim", "* -> *, * ; drop $dim"},
    {"linalg_vector_norm",
     "* -> * ; reduce $dim sum ; if ord=1 | * -> * ; reduce $dim sum ; if ord=0 |"
     "* -> * ; reduce $dim max ; nonempty $dim ; if ord=inf |"
     "* -> * ; reduce $dim min ; nonempty $dim ; if ord=-inf |"
     "* -> *!* ; kernel norm $dim"},
    {"norm.Scalar norm.ScalarOpt_dim norm.ScalarOpt_dim_dtype norm.ScalarOpt_dtype",
     "* -> * ; reduce $dim sum ; if p=1 | * -> * ; reduce $dim sum ; if p=0 |"
     "* -> * ; reduce $dim max ; nonempty $dim ; if p=inf |"
     "* -> * ; reduce $dim min ; nonempty $dim ; if p=-inf |"
     "* -> *!* ; kernel norm $dim"},
    {"trace", "MN -> . ; linear 0"},
    {"histogram.bins_tensor", "*, B, *? -> C, B!* ; if density=false | *, B, *? -> C, B ; whole *"},
    {"histogram.bin_ct", "*, *? -> C, D!* ; if density=false ; if range | *, *? -> C, D ; whole *"},
    {"_masked_softmax", "*, * -> * ; whole $dim! ; if mask_type=2 ; nonempty"},
    {"_masked_softmax_backward", "*, *, * -> * ; whole $dim! ; linear 0 ; nonempty"},

    // Along a dim.
    {"_softmax _safe_softmax cumprod logcumsumexp _logcumsumexp", "* -> * ; whole $dim"},
    {"_log_softmax", "* -> * ; whole $dim ; kernel log_softmax"},
    {"cumsum", "* -> * ; whole $dim ; kernel cumsum ; linear 0"},
    {"_softmax_backward_data", "*, * -> * ; whole $dim ; linear 0"},
    {"_log_softmax_backward_data",
     "*, * -> * ; whole $dim ; linear 0 ; kernel log_softmax_backward"},
    {"topk", "* -> *, * ; whole $dim ; kernel topk"},
    {"cummax cummin sort sort.stable", "* -> *, * ; whole $dim"},
};

}  // namespace

Table reduction_table() { return kReductionTable; }

}  // namespace tessera::rules
