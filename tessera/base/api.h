#pragma once

/// TESSERA_API marks what libtessera.so exports: in a header that is installed, every class and
/// every function that is defined in a source file; in other headers, the few names that the Python
/// extension uses (tools/check_api.py has the list). All else is hidden: a call inside of the
/// library is direct, and its names do not clash with those of another library in the process.
#define TESSERA_API __attribute__((visibility("default")))
