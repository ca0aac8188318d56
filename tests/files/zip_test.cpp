#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <random>
#include <thread>

#include "tessera/files/crc32.h"
#include "tessera/files/zip_reader.h"
#include "tessera/files/zip_writer.h"
#include "tests/support_pure/expect_error.h"
#include "tests/support_pure/temp_dir.h"

namespace tessera::files {
namespace zip_test {

using test::contents_of;
using test::expect_error;
using test::TempDir;

void write_file(const std::filesystem::path& path, std::string_view contents) {
  std::ofstream(path, std::ios::binary) << contents;
}

TEST(Crc32, IsThatOfTheZipFormat) {
  const std::string_view text = "123456789";
  const auto bytes = std::as_bytes(std::span(text.data(), text.size()));
  EXPECT_EQ(crc32(bytes), 0xCBF43926U);
  EXPECT_EQ(crc32({}), 0U);
}

TEST(Crc32, OfPartsIsThatOfTheWhole) {
  std::string data(3000, '\0');
  std::mt19937 random(7);
  for (auto& c : data) c = static_cast<char>(random());
  const auto bytes = std::as_bytes(std::span(data.data(), data.size()));
  for (size_t cut = 0; cut <= 70; ++cut) {
    EXPECT_EQ(crc32(bytes.subspan(cut), crc32(bytes.first(cut))), crc32(bytes)) << cut;
  }
  // One byte at a time goes by table, many at once by carry-less products where there are such.
  for (const size_t size : {63U, 64U, 65U, 79U, 80U, 128U, 255U, 256U, 257U, 319U, 320U, 511U, 512U,
                            519U, 576U, 1000U, 1024U, 3000U}) {
    uint32_t by_byte = 0;
    for (size_t i = 0; i < size; ++i) by_byte = crc32(bytes.subspan(i, 1), by_byte);
    EXPECT_EQ(crc32(bytes.first(size)), by_byte) << size;
  }
}

TEST(Zip, GivesBackWhatWasWritten) {
  const TempDir dir;
  const auto path = dir / "a.zip";
  std::vector<std::pair<std::string, std::string>> records = {{"a/empty", ""},
                                                              {"a/one", "1"},
                                                              {"a/\xC3\xA9", "accent"},
                                                              {"a/big", std::string(3 << 20, 'x')}};
  ZipWriter writer(path);
  for (const auto& [name, contents] : records) writer.add(name, contents);
  writer.begin("a/parts", 6);
  for (const char* part : {"ab", "", "cdef"}) {
    const std::string_view text = part;
    writer.write(std::as_bytes(std::span(text.data(), text.size())));
  }
  writer.finish();
  records.emplace_back("a/parts", "abcdef");

  const ZipReader reader(path);
  ASSERT_EQ(reader.records().size(), records.size());
  for (size_t i = 0; i < records.size(); ++i) {
    const ZipRecord& record = reader.records()[i];
    EXPECT_EQ(record.name, records[i].first);
    EXPECT_EQ(reader.text(record), records[i].second);
    EXPECT_EQ(record.offset % 64, 0U);
    EXPECT_EQ(reader.find(record.name), &record);
    reader.verify(record);
  }
  EXPECT_EQ(reader.find("a"), nullptr);
}

TEST(Zip, ACopyOfAllRecordsIsTheSameFile) {
  const TempDir dir;
  ZipWriter writer(dir / "a.zip");
  writer.add("x", "12345");
  writer.add("y", "");
  writer.finish();
  const ZipReader reader(dir / "a.zip");
  ZipWriter again(dir / "b.zip");
  for (const auto& record : reader.records()) again.copy(reader, record);
  again.finish();
  EXPECT_EQ(contents_of(dir / "a.zip"), contents_of(dir / "b.zip"));
}

TEST(Zip, RecordsThatThreadsWriteAreWhereTheyWereReserved) {
  const TempDir dir;
  const std::vector<std::string> contents = {std::string(3 << 20, 'x'), "", "1", "abcdef",
                                             std::string(100000, 'y')};
  ZipWriter in_order(dir / "a.zip");
  ZipWriter threaded(dir / "b.zip");
  std::vector<ZipWriter::Slot> slots;
  for (size_t i = 0; i < contents.size(); ++i) {
    const std::string name = "record_" + std::to_string(i);
    in_order.add(name, contents[i]);
    slots.push_back(threaded.reserve(name, contents[i].size()));
    in_order.add(name + "_text", "between");
    threaded.add(name + "_text", "between");
  }
  in_order.finish();
  std::vector<std::thread> threads;
  for (size_t i = contents.size(); i-- > 0;) {
    threads.emplace_back([&, i] {
      const auto bytes = std::as_bytes(std::span(contents[i]));
      for (size_t at = 0; at < bytes.size(); at += 70000) {
        threaded.write(slots[i], bytes.subspan(at, std::min<size_t>(70000, bytes.size() - at)));
      }
    });
  }
  for (auto& thread : threads) thread.join();
  threaded.finish();
  EXPECT_EQ(contents_of(dir / "a.zip"), contents_of(dir / "b.zip"));
}

TEST(Zip, AReservedRecordHasExactlyItsBytes) {
  const TempDir dir;
  ZipWriter writer(dir / "a.zip");
  auto slot = writer.reserve("short", 3);
  const std::string_view text = "1234";
  const auto bytes = std::as_bytes(std::span(text.data(), text.size()));
  expect_error<InternalError>([&] { writer.write(slot, bytes); }, {"more bytes"});
  writer.write(slot, bytes.first(2));
  expect_error<InternalError>([&] { writer.finish(); }, {"fewer bytes", "short"});
}

TEST(Zip, SaysWhichRecordIsDamaged) {
  const TempDir dir;
  ZipWriter writer(dir / "a.zip");
  writer.add("first", "aaaa");
  writer.add("second", "bbbb");
  writer.finish();
  std::string bytes = contents_of(dir / "a.zip");
  bytes[bytes.find("bbbb")] = 'c';
  write_file(dir / "a.zip", bytes);
  const ZipReader reader(dir / "a.zip");
  reader.verify(*reader.find("first"));
  expect_error<InvalidArgument>([&] { reader.verify(*reader.find("second")); },
                                {"a.zip", "second", "damaged"});
}

TEST(Zip, RefusesWhatIsNoArchive) {
  const TempDir dir;
  expect_error<InvalidArgument>([&] { ZipReader(dir / "none.zip"); }, {"none.zip", "No such file"});
  write_file(dir / "empty.zip", "");
  expect_error<InvalidArgument>([&] { ZipReader(dir / "empty.zip"); }, {"0 bytes"});
  write_file(dir / "text.zip", std::string(500, 'a'));
  expect_error<InvalidArgument>([&] { ZipReader(dir / "text.zip"); }, {"no zip file"});
  expect_error<InvalidArgument>([&] { ZipReader(dir.path()); }, {"not a regular file"});
}

// Every byte changed, and every truncation: an error or an archive, never a crash or a range
// outside of the file.
TEST(Zip, SurvivesEveryChangeOfAByte) {
  const TempDir dir;
  ZipWriter writer(dir / "a.zip");
  writer.add("first", "aaaa");
  writer.add("second", "bbbbbbbbbbbbbbb");
  writer.finish();
  const std::string good = contents_of(dir / "a.zip");
  const auto read = [&](const std::string& bytes) {
    write_file(dir / "b.zip", bytes);
    try {
      const ZipReader reader(dir / "b.zip");
      size_t sum = 0;
      for (const auto& record : reader.records()) {
        for (const std::byte b : reader.bytes(record)) sum += static_cast<size_t>(b);
      }
      EXPECT_GE(sum, 0U);
    } catch (const InvalidArgument&) {
    }
  };
  for (size_t i = 0; i < good.size(); ++i) {
    read(good.substr(0, i));
    for (const char change : {'\x00', '\x01', '\x7f', '\xff'}) {
      std::string bad = good;
      bad[i] = change;
      read(bad);
    }
  }
}

}  // namespace zip_test
}  // namespace tessera::files
