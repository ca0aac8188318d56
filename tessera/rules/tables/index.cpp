#include "tessera/rules/tables/tables.h"

/// Look-ups. (gather, scatter and index are in rules/code/indexing.cpp.)
namespace tessera::rules {
namespace {

constexpr TableLine kIndexTable[] = {
    {"embedding", "vd, * -> *d ; mask v ; move 0"},
    {"embedding_dense_backward",
     "*d, * -> vd ; mask v ; size v $num_weights ; local $num_weights v ; linear 0 ;"
     "whole v* if scale_grad_by_freq"},
    {"bucketize.Tensor", "*, B -> *"},
    {"searchsorted.Tensor", "B, *, _? -> * | sB, sq, sB? -> sq | stB, stq, stB? -> stq"},
    {"isin.Tensor_Tensor", "*, e.. -> * ; whole e"},
    {"isin.Tensor_Scalar", "* -> *"},
    // Bags of rows: columns are independent, unless the maximum of each bag is recorded.
    {"_embedding_bag _embedding_bag_forward_only",
     "Vd, _, _, _? -> Bd, _, _, _ ; whole d if mode=2"},
    {"_embedding_bag_dense_backward", "Bd, _, _, _, _, _? -> Vd ; whole d if mode=2 ; linear 0"},
    {"_embedding_bag_backward",
     "Bd, _, _, _, _, _, _? -> Vd ; if sparse=false ; size V $num_weights ; whole d if mode=2 ;"
     "linear 0"},
    {"_embedding_bag_per_sample_weights_backward", "Bd, Vd, _, _, _ -> N ; linear 0 ; linear 1"},
    {"multinomial", "nC -> nS | C -> S"},
    {"take", "I.., * -> * ; move 0"},
    // Added values may come from any rank; replacing ones must be on every rank. Indexes and values
    // have equal numbers of elements, whatever their shapes.
    {"put",
     "+X.., *, * -> X.. ; exact ; aligned ; if accumulate=true ; linear 0+2 |"
     "X.., Y.., Z.. -> X.."},
};

}  // namespace

Table index_table() { return kIndexTable; }

}  // namespace tessera::rules
