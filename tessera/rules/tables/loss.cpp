#include "tessera/rules/tables/tables.h"

/// Losses. reduction: 0 none, 1 mean, 2 sum. A mean of parts is weighted by their sizes; so is the
/// gradient of a mean, which the kernel divides by the number of local elements.
namespace tessera::rules {
namespace {

constexpr TableLine kLossTable[] = {
    {"mse_loss smooth_l1_loss huber_loss soft_margin_loss",
     "*, * -> * ; reduce * avg if reduction=1 ; reduce * sum if reduction=2"},
    {"binary_cross_entropy",
     "*, *, *? -> * ; reduce * avg if reduction=1 ; reduce * sum if reduction=2"},
    {"binary_cross_entropy_with_logits",
     "*, *, *?, *? -> * ; reduce * avg if reduction=1 ; reduce * sum if reduction=2"},
    {"mse_loss_backward smooth_l1_loss_backward huber_loss_backward soft_margin_loss_backward",
     "*, *, * -> * ; weigh * if reduction=1 ; linear 0"},
    {"binary_cross_entropy_backward", "*, *, *, *? -> * ; weigh * if reduction=1 ; linear 0"},
    {"multi_margin_loss",
     "nC, n, C? -> n ; if reduction=0 | nC, n, C? -> . ; reduce n avg if reduction=1"},
    {"multi_margin_loss_backward",
     "n, nC, n, C? -> nC ; if reduction=0 ; linear 0 |"
     "., nC, n, C? -> nC ; weigh n if reduction=1 ; linear 0"},
    {"multilabel_margin_loss_forward",
     "nC, nC -> n, nC ; if reduction=0 | nC, nC -> ., nC ; reduce n avg if reduction=1"},
    {"multilabel_margin_loss_backward",
     "n, nC, nC, nC -> nC ; if reduction=0 ; linear 0 |"
     "., nC, nC, nC -> nC ; weigh n if reduction=1 ; linear 0"},
    // The total weight is read only for a mean. The mean divides by the sum of the weights of all
    // targets, which no rank has, and a rank that has some classes has the scores of few rows: a
    // kernel of its own adds up what each has. The weights (K) are whole.
    {"nll_loss_forward",
     "nc, n, K? -> n!c, .!c ; if reduction=0 ; kernel nll c |"
     "nc, n, K? -> .!c, .!c ; if reduction=2 ; kernel nll c |"
     "nc, n, K? -> .!nc, .!nc ; kernel nll nc"},
    {"nll_loss_backward",
     "n, nc, n, K?, & -> nc ; if reduction=0 ; linear 0 ; kernel nll_backward c |"
     "., nc, n, K?, & -> nc ; if reduction=2 ; linear 0 ; kernel nll_backward c |"
     "., nc, n, K?, . -> nc ; linear 0 ; kernel nll_backward c"},
    {"nll_loss2d_forward",
     "nchw, nhw, K? -> nhw!c, .!c ; if reduction=0 ; kernel nll c |"
     "nchw, nhw, K? -> .!c, .!c ; if reduction=2 ; kernel nll c |"
     "nchw, nhw, K? -> .!nchw, .!nchw ; kernel nll nchw"},
    {"nll_loss2d_backward",
     "nhw, nchw, nhw, K?, & -> nchw ; if reduction=0 ; linear 0 ; kernel nll_backward c |"
     "., nchw, nhw, K?, & -> nchw ; if reduction=2 ; linear 0 ; kernel nll_backward c |"
     "., nchw, nhw, K?, . -> nchw ; linear 0 ; kernel nll_backward c"},
};

}  // namespace

Table loss_table() { return kLossTable; }

}  // namespace tessera::rules
