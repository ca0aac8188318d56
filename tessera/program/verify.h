#pragma once

#include <string>
#include <vector>

#include "tessera/program/exported_program.h"

namespace tessera::program {

/// What is unsound about a program, one line each, with the node or value; empty for a sound one.
/// Python's loader accepts most of these:
///
///   order       every value has one definition, and it precedes all uses
///   kinds       an argument refers to a value of its kind
///   signature   one spec for each input and output, naming the same values; targets exist
///   tensors     a weight has the type and shape of the graph's input that it is passed to
///   symbols     every symbol is bound by a size of an input, or by a node; ranges hold the hints
///
/// Whether a node's arguments fit its operator's schema needs libtorch: see interp/.
std::vector<std::string> problems_of(const ExportedProgram& program);

/// Throws InvalidArgument that names `document` and the first problems, if there are any.
void verify(const ExportedProgram& program, const std::string& document);

}  // namespace tessera::program
