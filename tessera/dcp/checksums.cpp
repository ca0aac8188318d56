#include "tessera/dcp/checksums.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "tessera/base/errors.h"
#include "tessera/files/block_sums.h"
#include "tessera/files/crc32.h"
#include "tessera/files/json_cursor.h"

namespace tessera::dcp {
namespace {

using files::BlockSums;
using Json = nlohmann::ordered_json;

constexpr std::string_view kFormat = "tessera checksums 1";
constexpr size_t kDigits = 8;

}  // namespace

std::string sums_text(std::span<const uint32_t> sums) {
  constexpr std::string_view kHex = "0123456789abcdef";
  std::string out;
  out.reserve(sums.size() * kDigits);
  for (const uint32_t sum : sums) {
    for (int shift = 28; shift >= 0; shift -= 4) out += kHex[(sum >> shift) & 0xF];
  }
  return out;
}

std::optional<std::vector<uint32_t>> parse_sums(std::string_view text) {
  if (text.size() % kDigits != 0) return std::nullopt;
  std::vector<uint32_t> out;
  for (size_t i = 0; i < text.size(); i += kDigits) {
    uint32_t sum = 0;
    const auto [end, error] = std::from_chars(text.data() + i, text.data() + i + kDigits, sum, 16);
    if (error != std::errc() || end != text.data() + i + kDigits) return std::nullopt;
    out.push_back(sum);
  }
  return out;
}

std::string checksums_text(const Checksums& checksums) {
  Json files = Json::object();
  for (const auto& [name, file] : checksums) {
    files[name] = {{"size", file.size}, {"crc32", sums_text(file.sums)}};
  }
  const Json json = {
      {"format", kFormat}, {"block", BlockSums::kBlock}, {"files", std::move(files)}};
  return json.dump(1) + "\n";
}

Checksums read_checksums(std::string_view text, const std::string& document) {
  const Json json = files::parse_json(text, document);
  const files::JsonCursor root(json, document);
  if (root.text("format") != kFormat) {
    root.at("format").fail("is not one that this version of tessera reads");
  }
  if (root.integer("block") != static_cast<int64_t>(BlockSums::kBlock)) {
    root.at("block").fail("is not the size that this version of tessera reads");
  }
  Checksums out;
  root.at("files").each_member([&](std::string_view name, const files::JsonCursor& file) {
    const int64_t size = file.integer("size");
    auto sums = parse_sums(file.text("crc32"));
    if (size < 0 || !sums || sums->size() != files::block_count(static_cast<uint64_t>(size))) {
      file.fail("does not have one sum for each block");
    }
    out.emplace(std::string(name), FileSums{static_cast<uint64_t>(size), std::move(*sums)});
  });
  return out;
}

VerifiedFile::VerifiedFile(std::shared_ptr<const files::InputFile> file,
                           std::optional<FileSums> sums)
    : file_(std::move(file)), sums_(std::move(sums)) {
  if (!sums_) return;
  require(sums_->size == file_->size(), file_->path(), " has ", file_->size(), " bytes, not ",
          sums_->size, " as ", kChecksumFile, " says: it is truncated or of another checkpoint");
  verified_.resize(sums_->sums.size());
}

void VerifiedFile::verify(uint64_t offset, uint64_t length) {
  if (!sums_ || length == 0) return;
  const uint64_t last = (offset + length - 1) / BlockSums::kBlock;
  for (uint64_t i = offset / BlockSums::kBlock; i <= last; ++i) {
    if (verified_.at(i)) continue;
    require(matches(i), file_->path(), " is damaged: bytes ", i * BlockSums::kBlock, " to ",
            (i + 1) * BlockSums::kBlock, " do not have the checksum that was stored with them");
    verified_[i] = true;
  }
}

bool VerifiedFile::matches(uint64_t block) {
  constexpr uint64_t kPart = uint64_t{256} << 10;
  uint64_t at = block * BlockSums::kBlock;
  const uint64_t end = std::min(at + BlockSums::kBlock, file_->size());
  buffer_.resize(std::min(kPart, file_->size()));
  uint32_t sum = 0;
  for (; at < end; at += kPart) {
    const auto part = std::span(buffer_).first(std::min(kPart, end - at));
    file_->read(at, part);
    sum = files::crc32(part, sum);
  }
  return sum == sums_->sums.at(block);
}

}  // namespace tessera::dcp
