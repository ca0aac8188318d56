#include "tessera/rules/tables/tables.h"

/// Fused cells of recurrent networks: n rows; gates and hidden units are not sharded. (On a CPU,
/// cells consist of linear and pointwise ops.)
namespace tessera::rules {
namespace {

constexpr TableLine kRecurrentTable[] = {
    {"_thnn_fused_lstm_cell", "nG, nG, nH, G?, G? -> nH, nH, nG ; nonempty"},
    {"_thnn_fused_lstm_cell_backward_impl", "nH?, nH?, nH, nH, nG -> nG, nH, G ; nonempty"},
    {"_thnn_fused_gru_cell", "nG, nG, nH, G?, G? -> nH, nW ; nonempty"},
    {"_thnn_fused_gru_cell_backward", "nH, nW -> nG, nG, nH, G, G ; nonempty ; linear 0"},
};

}  // namespace

Table recurrent_table() { return kRecurrentTable; }

}  // namespace tessera::rules
