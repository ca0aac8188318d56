#include "tessera/rules/code/code_rules.h"

#include <iterator>

namespace tessera::rules {

std::vector<Rule> code_rules() {
  std::vector<Rule> out;
  for (auto family : {dim_rules, view_rules, slice_rules, indexing_rules, product_rules, list_rules,
                      factory_rules, cast_rules, histogram_rules, read_rules}) {
    auto rules = family();
    out.insert(out.end(), std::make_move_iterator(rules.begin()),
               std::make_move_iterator(rules.end()));
  }
  return out;
}

}  // namespace tessera::rules
