// Damaged programs: every change ends in a program that runs or in an error of the library that
// names the file, never in a crash or another exception.
//
//   build/tests/test_interp --file=tests/interp/fuzz_test.cpp         40 s
//   TESSERA_FUZZ_SECONDS=600 TESSERA_FUZZ_SEED=7 build/tests/...      ten minutes
//
// A crash leaves the file that caused it: $TMPDIR/tessera_XXXXXX/mutated.pt2.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "tessera/base/errors.h"
#include "tessera/files/zip_writer.h"
#include "tessera/interp/program.h"
#include "tests/support_pure/temp_dir.h"

namespace tessera {
namespace fuzz_test {

using Json = nlohmann::ordered_json;
using Random = std::mt19937_64;
using test::contents_of;
using test::TempDir;

const std::vector<std::string> kPrograms = {"linear", "block",  "block_dynamic",
                                            "masked", "branch", "block_core"};

uint64_t from_environment(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

size_t pick(Random& random, size_t count) { return random() % count; }

/// No numbers that are large and can still be allocated: the machine would spend its memory.
int64_t odd_number(Random& random) {
  constexpr std::array<int64_t, 10> kNumbers = {
      0, 1, -1, 2, 3, 17, INT64_MAX, INT64_MIN, int64_t{1} << 62, -(int64_t{1} << 40)};
  return kNumbers[pick(random, kNumbers.size())];
}

Json odd_value(Random& random) {
  switch (pick(random, 7)) {
    case 0:
      return odd_number(random);
    case 1:
      return "text";
    case 2:
      return nullptr;
    case 3:
      return Json::array();
    case 4:
      return Json::object();
    case 5:
      return 0.5;
    default:
      return random() % 2 == 0;
  }
}

void collect(Json& json, std::vector<Json*>& out) {
  out.push_back(&json);
  if (json.is_structured()) {
    for (auto& child : json) collect(child, out);
  }
}

/// One change at a random place of a document.
void mutate(Json& json, Random& random) {
  std::vector<Json*> places;
  collect(json, places);
  Json& place = *places[pick(random, places.size())];
  Json& other = *places[pick(random, places.size())];
  const size_t how = pick(random, 6);
  if (place.is_number_integer() && how < 4) {
    place = odd_number(random);
  } else if (place.is_array() && !place.empty() && how < 4) {
    const size_t at = pick(random, place.size());
    if (how == 0) place.erase(at);
    if (how == 1) place.push_back(Json(place[at]));
    if (how == 2) std::swap(place[at], place[pick(random, place.size())]);
    if (how == 3) place.clear();
  } else if (place.is_object() && !place.empty() && how < 2) {
    place.erase(std::next(place.begin(), static_cast<ptrdiff_t>(pick(random, place.size()))));
  } else if (place.type() == other.type() && !place.is_structured()) {
    place = Json(other);  // another number, name or target of the file
  } else if (how < 5) {
    place = odd_value(random);
  } else if (!other.is_structured()) {
    place = Json(other);
  }
}

/// The archive with one JSON record changed.
void write_with_changed_json(const std::string& from, const std::filesystem::path& to,
                             Random& random) {
  const files::ZipReader zip(from);
  std::vector<const files::ZipRecord*> documents;
  for (const auto& record : zip.records()) {
    if (record.name.ends_with(".json")) documents.push_back(&record);
  }
  // Mostly the graph: it is where most can go wrong.
  const files::ZipRecord* chosen = documents[pick(random, documents.size())];
  for (const auto* document : documents) {
    if (random() % 4 != 0 && document->name.ends_with("models/model.json")) chosen = document;
  }
  Json json = Json::parse(zip.text(*chosen));
  for (size_t i = 0; i <= pick(random, 3); ++i) mutate(json, random);
  files::ZipWriter writer(to);
  for (const auto& record : zip.records()) {
    if (&record == chosen) {
      writer.add(record.name, json.dump(-1, ' ', false, Json::error_handler_t::replace));
    } else {
      writer.copy(zip, record);
    }
  }
  writer.finish();
}

/// The file with bytes changed, truncated or moved.
void write_with_changed_bytes(const std::string& from, const std::filesystem::path& to,
                              Random& random) {
  std::string bytes = contents_of(from);
  switch (pick(random, 4)) {
    case 0:
      bytes.resize(pick(random, bytes.size()));
      break;
    case 1:
      bytes.erase(pick(random, bytes.size()), pick(random, 200));
      break;
    default:
      for (size_t i = 0; i <= pick(random, 8); ++i) {
        // Half of them in the directory at the end, which everything depends on.
        const size_t range = random() % 2 == 0 ? bytes.size() : std::min<size_t>(bytes.size(), 900);
        bytes[bytes.size() - 1 - pick(random, range)] = static_cast<char>(random());
      }
  }
  std::ofstream(to, std::ios::binary) << bytes;
}

/// Zeros of the shapes that the program asks for; nothing if they are too large.
std::optional<Program::Values> inputs_of(const Program& program) {
  Program::Values out;
  for (const auto& port : program.inputs()) {
    if (!port.tensor) {
      out.emplace_back(int64_t{2});
      continue;
    }
    std::vector<int64_t> shape;
    int64_t elements = 1;
    for (const auto& size : port.tensor->sizes) {
      shape.push_back(size.hint().value_or(2));
      if (shape.back() < 0 || shape.back() > 1000) return std::nullopt;
      elements *= std::max<int64_t>(shape.back(), 1);
      if (elements > 100000) return std::nullopt;
    }
    out.emplace_back(at::zeros(shape, static_cast<c10::ScalarType>(port.tensor->dtype)));
  }
  return out;
}

struct Counts {
  int ran = 0;
  int refused = 0;
};

/// Whether all went as it should.
bool try_program(const std::filesystem::path& path, Counts& counts) {
  try {
    Program program = Program::load(path);
    if (auto inputs = inputs_of(program)) program.run(std::move(*inputs));
    ++counts.ran;
    return true;
  } catch (const Error& error) {
    ++counts.refused;
    const bool names_file = std::string(error.what()).find("mutated.pt2") != std::string::npos;
    EXPECT_TRUE(names_file) << error.what();
    return names_file;
  } catch (const std::exception& error) {
    ADD_FAILURE() << "another kind of exception: " << error.what();
    return false;
  }
}

TEST(Fuzz, DamagedProgramsRunOrAreRefused) {
  const TempDir dir;
  const std::filesystem::path path = dir / "mutated.pt2";
  const uint64_t seed = from_environment("TESSERA_FUZZ_SEED", 1);
  const auto end = std::chrono::steady_clock::now() +
                   std::chrono::seconds(from_environment("TESSERA_FUZZ_SECONDS", 40));
  Counts counts;
  for (uint64_t i = 0; std::chrono::steady_clock::now() < end; ++i) {
    Random random(seed * 1000003 + i);
    const std::string from = "tests/program/data/" + kPrograms[pick(random, 6)] + ".pt2";
    if (random() % 4 == 0) {
      write_with_changed_bytes(from, path, random);
    } else {
      write_with_changed_json(from, path, random);
    }
    if (!try_program(path, counts)) {
      const auto kept = std::filesystem::temp_directory_path() / "tessera_fuzz_found.pt2";
      std::filesystem::copy_file(path, kept, std::filesystem::copy_options::overwrite_existing);
      FAIL() << "seed " << seed << ", change " << i << " of " << from << ", kept as " << kept;
    }
  }
  std::printf("%d programs ran, %d were refused\n", counts.ran, counts.refused);
  EXPECT_GT(counts.refused, 10);
}

}  // namespace fuzz_test
}  // namespace tessera
