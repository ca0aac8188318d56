#pragma once

#include <string_view>
#include <vector>

#include "tessera/rules/rule.h"

/// The rules that the notation cannot express, by family; each in the file of its name.
namespace tessera::rules {

std::vector<Rule> dim_rules();        ///< permute, squeeze, expand, select, repeat, diagonal, ...
std::vector<Rule> view_rules();       ///< view, reshape: dims that merge and split
std::vector<Rule> slice_rules();      ///< slice, split, narrow: parts of a dim
std::vector<Rule> indexing_rules();   ///< gather, scatter, index, index_put, pad
std::vector<Rule> product_rules();    ///< products of three, gradients of distances
std::vector<Rule> list_rules();       ///< cat, stack, optimizers
std::vector<Rule> factory_rules();    ///< new_zeros and similar
std::vector<Rule> cast_rules();       ///< copies between element types
std::vector<Rule> histogram_rules();  ///< histc: counts between two numbers
std::vector<Rule> read_rules();       ///< item, equal, norms of a list, unscaling of gradients

/// All of them.
std::vector<Rule> code_rules();

/// The rule of a list op (_foreach_add) from that of its element op; in lists.cpp.
Rule for_each(std::string_view op, const Rule& element);

}  // namespace tessera::rules
