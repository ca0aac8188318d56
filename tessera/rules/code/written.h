#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "tessera/rules/rule.h"

/// Rules whose notation depends on the arguments: a function generates it for each call.
///
///   permute 2x3x4 by {0,2,1}    ->  "abc -> acb ; move 0"
///   index_select of dim 1       ->  "aBc, n -> anc ; move 0"
namespace tessera::rules {

/// Returns an empty text if this call has no rows.
using WriteLine = std::function<std::string(const OpCall& call)>;

/// `what` is a description for users: "code: permute".
Rule written_rule(std::string_view op, std::string_view what, WriteLine write);

/// The tensor argument of this name; undefined if there is none.
Sharding tensor_of(const OpCall& call, std::string_view name);
std::vector<Sharding> tensors_of(const OpCall& call, std::string_view name);

/// The dim that an attribute names, from 0; -1 if the tensor has no dims.
int dim_of(const OpCall& call, std::string_view name, int ndim);

/// A letter per dim, "abc"; another first letter separates several groups.
std::string letters_for(int ndim, char first = 'a');
char upper(char letter);

/// Replaces an attribute that lists the result's shape by the local shape.
LocalArg local_shape_of_result(std::string name, int result = 0);

/// The result of the gradients of views: contiguous, of the shape that "input_sizes" lists and the
/// dtype of the first operand.
std::vector<ResultMeta> contiguous_input(const OpCall& call);

}  // namespace tessera::rules
