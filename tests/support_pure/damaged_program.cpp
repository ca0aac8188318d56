#include "tests/support_pure/damaged_program.h"

#include <array>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tessera/files/zip_writer.h"
#include "tests/support_pure/temp_dir.h"

namespace tessera::test {
namespace {

using Json = nlohmann::ordered_json;
using Random = std::mt19937_64;

constexpr std::array<const char*, 6> kPrograms = {"linear", "block",  "block_dynamic",
                                                  "masked", "branch", "block_core"};

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

}  // namespace

uint64_t from_environment(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

std::string write_damaged_program(const std::filesystem::path& to, Random& random) {
  const std::string from =
      std::string("tests/program/data/") + kPrograms[pick(random, kPrograms.size())] + ".pt2";
  if (random() % 4 == 0) {
    write_with_changed_bytes(from, to, random);
  } else {
    write_with_changed_json(from, to, random);
  }
  return from;
}

}  // namespace tessera::test
