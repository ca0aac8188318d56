#pragma once

#include <span>
#include <string_view>
#include <vector>

/// The tables of rules, one line for ops that share a rule; used only by
/// `rules/registry/registry.cpp`.
namespace tessera::rules {

struct TableLine {
  std::string_view ops;  ///< "add.Tensor sub.Tensor", without "aten::"
  std::string_view rule;
};
using Table = std::span<const TableLine>;

Table matrix_table();
Table attention_table();
Table pointwise_table();
Table reduction_table();
Table norm_table();
Table loss_table();
Table convolution_table();
Table shape_table();
Table index_table();
Table linalg_table();
Table recurrent_table();
Table quantize_table();

inline std::vector<Table> all_tables() {
  return {matrix_table(), attention_table(), pointwise_table(),   reduction_table(),
          norm_table(),   loss_table(),      convolution_table(), shape_table(),
          index_table(),  linalg_table(),    recurrent_table(),   quantize_table()};
}

}  // namespace tessera::rules
