#pragma once

#include "tessera/base/errors.h"

namespace tessera::cli {

/// Calls `verb`. A program, plan or mesh that this library does not support counts as invalid
/// input, which ends the command with exit code 2.
template <typename Verb>
void as_input_error(const Verb& verb) {
  try {
    verb();
  } catch (const NotSupported& error) {
    throw InvalidArgument(error.what());
  }
}

}  // namespace tessera::cli
