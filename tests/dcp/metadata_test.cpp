#include "tessera/dcp/metadata.h"

#include <gtest/gtest.h>

#include <fstream>
#include <random>

#include "tessera/dcp/check.h"
#include "tessera/dcp/checksums.h"
#include "tessera/dcp/items.h"
#include "tessera/files/block_sums.h"
#include "tessera/files/pickle/pickle_writer.h"
#include "tessera/files/zip_writer.h"
#include "tests/support_pure/expect_error.h"
#include "tests/support_pure/temp_dir.h"

namespace tessera::dcp {
namespace metadata_test {

using test::expect_error;
using test::TempDir;

std::span<const std::byte> as_bytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

Metadata sample() {
  Metadata out;
  out.entries["w"] = TensorEntry{DType::bf16,
                                 {5, 6},
                                 {{{{0, 0}, {3, 6}}, {"__0_0.distcp", 0, 1261}},
                                  {{{3, 0}, {5, 6}}, {"__1_0.distcp", 64, 5'000'000'000}}}};
  out.entries["scalar"] = TensorEntry{DType::f32, {}, {{{{}, {}}, {"__0_0.distcp", 1280, 900}}}};
  out.entries["empty"] = TensorEntry{DType::i64, {0, 3}, {}};
  out.entries["optim.step"] = ValueEntry{{"__0_0.distcp", 4096, 700}};
  out.paths["optim.step"] = {"optim", int64_t{3}, "step"};
  return out;
}

TEST(Metadata, ComesBackAsItWasWritten) {
  const Metadata written = sample();
  const std::string text = write_metadata(written);
  const Metadata read = read_metadata(as_bytes(text), "m");
  ASSERT_EQ(read.entries.size(), written.entries.size());
  const auto& w = std::get<TensorEntry>(read.entries.at("w"));
  EXPECT_EQ(w.dtype, DType::bf16);
  EXPECT_EQ(w.shape, (std::vector<int64_t>{5, 6}));
  ASSERT_EQ(w.chunks.size(), 2u);
  EXPECT_EQ(w.chunks[1].box, (Box{{3, 0}, {5, 6}}));
  EXPECT_EQ(w.chunks[1].item, (StoredItem{"__1_0.distcp", 64, 5'000'000'000}));
  EXPECT_EQ(std::get<TensorEntry>(read.entries.at("scalar")).chunks.size(), 1u);
  EXPECT_EQ(std::get<ValueEntry>(read.entries.at("optim.step")).item.offset, 4096u);
  EXPECT_EQ(read.paths.at("optim.step"), written.paths.at("optim.step"));
  EXPECT_EQ(read.paths.at("w"), Path{"w"});
}

TEST(Metadata, SurvivesDamage) {
  const std::string good = write_metadata(sample());
  std::mt19937 random(5);
  for (int i = 0; i < 10000; ++i) {
    std::string bad = good;
    for (unsigned k = 0; k <= random() % 4; ++k) {
      bad[random() % bad.size()] = static_cast<char>(random());
    }
    if (random() % 8 == 0) bad.resize(random() % bad.size());
    try {
      const Metadata metadata = read_metadata(as_bytes(bad), "m");
      for (const auto& [name, entry] : metadata.entries) {
        if (const auto* tensor = std::get_if<TensorEntry>(&entry)) check_chunks(name, *tensor, "m");
      }
    } catch (const Error&) {
    }
  }
}

TEST(Chunks, AreTheTensorOrAnErrorNamesIt) {
  const auto check = [](std::vector<int64_t> shape, std::vector<Box> boxes) {
    TensorEntry entry{DType::f32, std::move(shape), {}};
    for (auto& box : boxes) entry.chunks.push_back({std::move(box), {}});
    check_chunks("w", entry, "m");
  };
  check({4, 4}, {{{0, 0}, {4, 2}}, {{0, 2}, {4, 4}}});
  check({4, 4}, {{{0, 0}, {2, 4}}, {{2, 0}, {4, 4}}, {{4, 0}, {4, 4}}});
  check({}, {{{}, {}}});
  check({0, 3}, {});
  expect_error<InvalidArgument>([&] { check({4, 4}, {{{0, 0}, {4, 2}}}); }, {"w", "8 of 16"});
  expect_error<InvalidArgument>(
      [&] {
        check({4, 4}, {{{0, 0}, {4, 2}}, {{0, 1}, {4, 3}}, {{0, 3}, {4, 4}}});
      },
      {"m: w", "overlap"});
  expect_error<InvalidArgument>([&] { check({4, 4}, {{{0, 0}, {5, 4}}}); }, {"not inside"});
  check({4, 4}, {{{0, 0}, {3, 1}},
                 {{0, 1}, {1, 4}},
                 {{1, 3}, {4, 4}},
                 {{3, 0}, {4, 3}},
                 {{1, 1}, {3, 3}}});  // no grid
  expect_error<InvalidArgument>(
      [&] {
        check({4, 4}, {{{0, 0}, {3, 1}},
                       {{0, 1}, {1, 4}},
                       {{1, 2}, {4, 4}},
                       {{3, 0}, {4, 3}},
                       {{1, 1}, {3, 3}}});
      },
      {"overlap"});
  expect_error<InvalidArgument>(
      [&] {
        check({2, 4}, {{{0, 0}, {1, 2}}, {{0, 2}, {1, 4}}, {{1, 0}, {2, 2}}, {{1, 0}, {2, 2}}});
      },
      {"overlap", "[1,0) to [2,2)"});
  expect_error<InvalidArgument>([&] { check({4}, {{{-1}, {3}}}); }, {"not inside"});
  expect_error<InvalidArgument>([&] { check({}, {{{}, {}}, {{}, {}}}); }, {"more than once"});
  expect_error<InvalidArgument>([&] { check({}, {}); }, {"0 of 1"});
  expect_error<InvalidArgument>([&] { check({1 << 30, 1 << 30, 1 << 30}, {}); }, {"impossible"});
}

/// Compared by pairs, these are 45 billion comparisons.
TEST(Chunks, OfAFineGridAreCheckedInASecond) {
  constexpr int64_t kSide = 300;
  TensorEntry columns{DType::f32, {4, kSide * kSide}, {}};
  for (int64_t i = 0; i < kSide * kSide; ++i) columns.chunks.push_back({{{0, i}, {4, i + 1}}, {}});
  check_chunks("w", columns, "m");
  TensorEntry tiles{DType::f32, {kSide, kSide, 2}, {}};
  for (int64_t i = 0; i < kSide * kSide; ++i) {
    const int64_t row = i / kSide, column = i % kSide;
    tiles.chunks.push_back({{{row, column, 0}, {row + 1, column + 1, 2}}, {}});
  }
  check_chunks("w", tiles, "m");
  tiles.chunks.back() = tiles.chunks.front();
  expect_error<InvalidArgument>([&] { check_chunks("w", tiles, "m"); }, {"overlap"});
}

TEST(Metadata, WithANameOrAPlaceTwiceIsRefused) {
  const auto pickled = [](int names, int places) {
    files::PickleWriter out;
    const std::string module = "torch.distributed.checkpoint.metadata";
    out.global(module, "Metadata").mark();
    out.empty_dict().mark();
    for (int i = 0; i < names; ++i) {
      out.text("step").global(module, "BytesStorageMetadata").mark().tuple().reduce();
    }
    out.set_items().none().empty_dict().mark();
    for (int i = 0; i < places; ++i) {
      out.global(module, "MetadataIndex").mark().text("step").tuple().reduce();
      out.global("torch.distributed.checkpoint.filesystem", "_StorageInfo").mark();
      out.text("f").integer(i).integer(1).tuple().reduce();
    }
    out.set_items().tuple().reduce();
    return out.finish();
  };
  EXPECT_EQ(read_metadata(as_bytes(pickled(1, 1)), "m").entries.size(), 1U);
  const auto read = [&](const std::string& text) { read_metadata(as_bytes(text), "m"); };
  expect_error<InvalidArgument>([&] { read(pickled(2, 1)); }, {"m: it has the name step twice"});
  expect_error<InvalidArgument>([&] { read(pickled(1, 2)); }, {"m: it says twice where step"});
}

TEST(FilesOfACheckpoint, AreInsideOfItsDirectory) {
  const TempDir dir;
  std::filesystem::create_directories(dir / "inner/deep");
  std::ofstream(dir / "outside") << "x";
  std::ofstream(dir / "inner/file") << "x";
  std::ofstream(dir / "inner/deep/file") << "x";
  std::filesystem::create_symlink(dir / "outside", dir / "inner/link");
  std::filesystem::create_symlink("file", dir / "inner/own_link");
  EXPECT_EQ(file_inside(dir / "inner", "file").filename(), "file");
  EXPECT_EQ(file_inside(dir / "inner", "deep/file").filename(), "file");
  EXPECT_EQ(file_inside(dir / "inner", "own_link").filename(), "file");
  for (const std::string name : {"../outside", "/etc/passwd", "deep/../../outside", ""}) {
    expect_error<InvalidArgument>([&] { file_inside(dir / "inner", name); }, {"not inside"});
  }
  expect_error<InvalidArgument>([&] { file_inside(dir / "inner", "link"); }, {"symbolic link"});
  expect_error<InvalidArgument>([&] { file_inside(dir / "inner", "none"); }, {"none", "No such"});
}

TEST(Items, ComeBackAsTheyWereWritten) {
  const TempDir dir;
  const std::string data = "0123456789abcdefghijklmn";
  files::BlockSums sums;
  files::OutputFile out(dir / "f", {.sums = &sums});
  out.write("odd");  // items need not be aligned
  const std::vector<int64_t> sizes = {2, 3};
  const auto write = [&](const auto& sink) {
    sink(as_bytes(data).first(5));
    sink(as_bytes(data).subspan(5));
  };
  const StoredItem tensor = write_tensor_item(out, "f", DType::f32, sizes, write);
  const StoredItem value = write_value_item(out, "f", files::PlainValue("hello"));
  const std::vector<int64_t> bytes = {24};
  const StoredItem small = write_tensor_item(out, "f", DType::f8_e4m3fn, bytes, write);
  out.close();
  const auto file = files::InputFile::open(dir / "f");
  const TensorItem item = read_tensor_item(file, tensor);
  EXPECT_EQ(item.dtype, DType::f32);
  EXPECT_EQ(item.sizes, sizes);
  EXPECT_EQ(item.strides, (std::vector<int64_t>{3, 1}));
  std::string stored(24, ' ');
  file->read(item.offset, std::as_writable_bytes(std::span(stored)));
  EXPECT_EQ(stored, data);
  EXPECT_EQ(read_tensor_item(file, small).dtype, DType::f8_e4m3fn);
  EXPECT_EQ(read_value_item(file, value), files::PlainValue("hello"));
  EXPECT_THROW(read_tensor_item(file, value), InvalidArgument);
  expect_error<InvalidArgument>(
      [&] {
        read_tensor_item(file, {"f", tensor.offset, file->size()});
      },
      {"truncated"});

  VerifiedFile verified(file, FileSums{file->size(), {sums.values()[0]}});
  verified.verify(0, 10);
  VerifiedFile damaged(file, FileSums{file->size(), {sums.values()[0] ^ 1}});
  expect_error<InvalidArgument>([&] { damaged.verify(tensor.offset, 4); }, {"damaged"});
  EXPECT_THROW(VerifiedFile(file, FileSums{1, {0}}), InvalidArgument);
}

/// A value of a class that is not read here is not damaged for that.
TEST(Items, OfAnyClassCanBeVerified) {
  const TempDir dir;
  files::PickleWriter pickle;
  pickle.global("numpy", "ndarray").mark().tuple().reduce();
  files::OutputFile out(dir / "f");
  files::ZipWriter zip(out);
  zip.add("archive/data.pkl", pickle.finish());
  zip.finish();
  const StoredItem item{"f", 0, out.position()};
  out.close();
  verify_value_item(files::InputFile::open(dir / "f"), item);
  expect_error<InvalidArgument>([&] { read_value_item(files::InputFile::open(dir / "f"), item); },
                                {"numpy.ndarray"});
  std::fstream(dir / "f", std::ios::in | std::ios::out).seekp(70).put('!');
  expect_error<InvalidArgument>([&] { verify_value_item(files::InputFile::open(dir / "f"), item); },
                                {"data.pkl"});
}

TEST(Checksums, ComeBackAsTheyWereWritten) {
  const Checksums written = {{"a", {0, {}}},
                             {"b", {files::BlockSums::kBlock + 1, {1, 0xdeadbeef}}}};
  const Checksums read = read_checksums(checksums_text(written), "c");
  EXPECT_EQ(read.at("b").sums, written.at("b").sums);
  EXPECT_EQ(read.at("a").size, 0u);
  const auto with = [](std::string_view format, std::string_view sums) {
    return join_text(R"({"format": ")", format, R"(", "block": 1048576, "files": )",
                     R"({"a": {"size": 5, "crc32": ")", sums, R"("}}})");
  };
  EXPECT_EQ(read_checksums(with("tessera checksums 1", "0000000f"), "c").at("a").sums[0], 15u);
  for (const std::string& text :
       {std::string(), std::string("{}"), with("other", "00000000"),
        with("tessera checksums 1", ""), with("tessera checksums 1", "0000000g")}) {
    EXPECT_THROW(read_checksums(text, "c"), InvalidArgument) << text;
  }
}

}  // namespace metadata_test
}  // namespace tessera::dcp
