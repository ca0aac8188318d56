#include "tessera/files/safetensors.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>

#include "tests/support_pure/expect_error.h"
#include "tests/support_pure/temp_dir.h"

namespace tessera::files {
namespace safetensors_test {

using test::expect_error;
using test::TempDir;

SafetensorsTensor tensor_of(std::string name, DType dtype, std::vector<int64_t> shape,
                            std::string bytes) {
  return {std::move(name), dtype, std::move(shape), [bytes = std::move(bytes)](const auto& sink) {
            sink(std::as_bytes(std::span(bytes.data(), bytes.size())));
          }};
}

/// A file with this header and so many bytes of tensors.
std::filesystem::path file_of(const TempDir& dir, std::string_view header, size_t bytes) {
  const auto path = dir / "t.safetensors";
  std::ofstream out(path, std::ios::binary);
  const uint64_t length = header.size();
  out.write(reinterpret_cast<const char*>(&length), sizeof length);
  out << header << std::string(bytes, 'x');
  return path;
}

TEST(Safetensors, GivesBackWhatWasWritten) {
  const TempDir dir;
  const auto path = dir / "a.safetensors";
  write_safetensors(
      path,
      {tensor_of("w", DType::f32, {2, 1}, "12345678"), tensor_of("empty", DType::i64, {0, 3}, ""),
       tensor_of("scalar", DType::bf16, {}, "ab"),
       tensor_of("a\"b\xC3\xA9", DType::boolean, {3}, std::string("\1\0\1", 3))},
      {.metadata = {{"format", "pt"}}});
  const SafetensorsFile file(path);
  ASSERT_EQ(file.entries().size(), 4U);
  const auto text = [&](const char* name) {
    const auto bytes = file.bytes(*file.find(name));
    return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  };
  EXPECT_EQ(file.find("w")->shape, (std::vector<int64_t>{2, 1}));
  EXPECT_EQ(text("w"), "12345678");
  EXPECT_EQ(text("empty"), "");
  EXPECT_EQ(text("scalar"), "ab");
  EXPECT_EQ(file.find("scalar")->dtype, DType::bf16);
  EXPECT_NE(file.find("a\"b\xC3\xA9"), nullptr);
  EXPECT_EQ(file.find("none"), nullptr);
  EXPECT_EQ(file.metadata().at("format"), "pt");
}

TEST(Safetensors, RefusesBrokenHeaders) {
  const TempDir dir;
  const auto refuses = [&](std::string_view header, size_t bytes,
                           std::initializer_list<std::string_view> parts) {
    expect_error<InvalidArgument>([&] { SafetensorsFile(file_of(dir, header, bytes)); }, parts);
  };
  refuses(R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 4, {"outside of the file"});
  refuses(R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 12, {"4 bytes at its end"});
  refuses(R"({"w":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})", 8,
          {"w is F32 3 in 8 bytes"});
  refuses(R"({"w":{"dtype":"F31","shape":[2],"data_offsets":[0,8]}})", 8, {"F31"});
  refuses(R"({"w":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})", 8, {"-2"});
  refuses(R"({"w":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0]}})", 0,
          {"w"});
  refuses(R"({"v":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
          R"("w":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}})",
          6, {"w starts at byte"});
  refuses(R"({"w":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
          R"("w":{"dtype":"U8","shape":[2,2],"data_offsets":[0,4]}})",
          4, {"t.safetensors: header", "the key \"w\" occurs twice"});
  refuses(R"({"w":)", 0, {"t.safetensors: header"});
  refuses(R"([])", 0, {"header is array, not an object"});
  expect_error<InvalidArgument>([&] { SafetensorsFile(dir / "none"); }, {"No such file"});
  std::ofstream(dir / "short") << "abc";
  expect_error<InvalidArgument>([&] { SafetensorsFile(dir / "short"); }, {"3 bytes"});
  std::ofstream(dir / "huge") << std::string(16, '\x7f');
  expect_error<InvalidArgument>([&] { SafetensorsFile(dir / "huge"); }, {"a header of"});
}

TEST(Safetensors, TakesAsLongAsTheirHeaderIs) {
  const TempDir dir;
  std::string header = R"({"__metadata__":null)";
  constexpr int kTensors = 200'000;
  for (int i = 0; i < kTensors; ++i) {
    header +=
        join_text(",\"w", i, R"(":{"dtype":"U8","shape":[],"data_offsets":[)", i, ",", i + 1, "]}");
  }
  const SafetensorsFile file(file_of(dir, header + "}", kTensors));
  EXPECT_EQ(file.entries().size(), static_cast<size_t>(kTensors));
}

TEST(Safetensors, RefusesToWriteANameTwiceOrAnUnknownType) {
  const TempDir dir;
  expect_error<InvalidArgument>(
      [&] {
        write_safetensors(
            dir / "a", {tensor_of("w", DType::u8, {1}, "1"), tensor_of("w", DType::u8, {1}, "1")},
            {});
      },
      {"w occurs twice"});
  expect_error<NotSupported>(
      [&] { write_safetensors(dir / "a", {tensor_of("w", DType::c128, {0}, "")}, {}); }, {"c128"});
}

}  // namespace safetensors_test
}  // namespace tessera::files
