#pragma once

#include <span>
#include <string_view>

#include "tessera/files/pickle/pickle_reader.h"
#include "tessera/files/pickle/pickle_writer.h"
#include "tessera/files/pickle/plain_value.h"

/// Plain values to and from pickles.
namespace tessera::files {

/// Converts a pickled value. Throws InvalidArgument for objects and tensors in it, and for nesting
/// or sizes beyond any real file (a pickle may reference one value many times, so a small one can
/// be huge).
PlainValue plain_value(PickleRef pickled);

/// The names that may occur in the pickle of a plain value.
std::span<const std::string_view> plain_value_globals();

void write(PickleWriter& out, const PlainValue& value);

}  // namespace tessera::files
