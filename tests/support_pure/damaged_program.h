#pragma once

#include <cstdint>
#include <filesystem>
#include <random>
#include <string>

namespace tessera::test {

/// A number of an environment variable.
uint64_t from_environment(const char* name, uint64_t otherwise);

/// Writes one of the programs of tests/program/data with random damage: a few changes in one of its
/// JSON documents, mostly the graph, or in the bytes of the archive. Returns which one it was.
std::string write_damaged_program(const std::filesystem::path& to, std::mt19937_64& random);

}  // namespace tessera::test
