#pragma once

#include <string>
#include <vector>

#include "tessera/program/exported_program.h"

namespace tessera::program {

/// The problems of a program, one line each, with the node or value; empty for a valid one.
/// Python's loader accepts most of these:
///
///   order       every value has one definition, which precedes all uses
///   kinds       an argument references a value of its kind
///   signature   one spec per input and output, naming the same values; targets exist
///   tensors     a weight has the dtype and shape of the graph input that it is passed to
///   symbols     every symbol is bound by a size of an input, or by a node; ranges hold the hints
///
/// Whether a node's arguments match its operator's schema needs libtorch: see interp/.
std::vector<std::string> problems_of(const ExportedProgram& program);

/// Throws InvalidArgument with `document` and the first problems, if there are any.
void verify(const ExportedProgram& program, const std::string& document);

}  // namespace tessera::program
