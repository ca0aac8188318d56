#include <gtest/gtest.h>

#include <limits>
#include <random>

#include "tessera/files/pickle/pickle_reader.h"
#include "tessera/files/pickle/pickle_writer.h"
#include "tessera/files/pickle/plain_pickle.h"
#include "tests/support_pure/expect_error.h"

namespace tessera::files {
namespace pickle_test {

using test::expect_error;

std::span<const std::byte> as_bytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

PlainValue parse(std::string_view pickled) {
  return plain_value(
      Pickle::parse(as_bytes(pickled), {.document = "test", .globals = plain_value_globals()})
          .root());
}

std::string from_hex(std::string_view digits) {
  std::string out;
  for (size_t i = 0; i < digits.size(); i += 2) {
    out += static_cast<char>(std::stoi(std::string(digits.substr(i, 2)), nullptr, 16));
  }
  return out;
}

std::string pickled(const PlainValue& value) {
  PickleWriter out;
  write(out, value);
  return out.finish();
}

TEST(PlainValue, ComesBackAsItWasWritten) {
  const std::string all_bytes = [] {
    std::string out;
    for (int i = 0; i < 256; ++i) out += static_cast<char>(i);
    return out;
  }();
  const PlainValue values[] = {
      {},
      true,
      false,
      0,
      255,
      256,
      65535,
      65536,
      -1,
      int64_t{1} << 31,
      std::numeric_limits<int64_t>::min(),
      0.1,
      -std::numeric_limits<double>::infinity(),
      "",
      "text with \xC3\xA9 and \n",
      std::string(70000, 'x'),
      PlainValue::bytes(all_bytes),
      PlainValue::list({}),
      PlainValue::tuple({0.9, 0.999}),
      PlainValue::dict({{"lr", 0.001}, {7, PlainValue::list({1, "two", PlainValue()})}}),
  };
  for (const auto& value : values) EXPECT_EQ(parse(pickled(value)), value) << value.to_text();
}

TEST(PlainValue, PrintsAsPythonDoes) {
  EXPECT_EQ(PlainValue::tuple({1}).to_text(), "(1,)");
  EXPECT_EQ(PlainValue::dict({{"a", PlainValue()}, {"b", true}}).to_text(),
            "{'a': None, 'b': True}");
  EXPECT_EQ(PlainValue(1e-5).to_text(), "1e-05");
  expect_error<InvalidArgument>([] { PlainValue("x").integer(); }, {"'x' is not a whole number"});
}

/// What Python itself writes: {'a': (1, 2.5), 'b': [b'\xff', None]} in protocols 2 and 4.
TEST(PlainValue, ReadsWhatPythonWrites) {
  const auto expected =
      PlainValue::dict({{"a", PlainValue::tuple({1, 2.5})},
                        {"b", PlainValue::list({PlainValue::bytes("\xFF"), PlainValue()})}});
  const std::string protocol2 = from_hex(
      "80027d71002858010000006171014b0147400400000000000086710258010000006271035d710428635f"
      "636f646563730a656e636f64650a71055802000000c3bf710658060000006c6174696e31710786710852"
      "71094e65752e");
  EXPECT_EQ(parse(protocol2), expected);
  const std::string protocol4 = from_hex(
      "80049523000000000000007d94288c0161944b0147400400000000000086948c0162945d94284301ff94"
      "4e65752e");
  EXPECT_EQ(parse(protocol4), expected);
  const std::string no_bytes = from_hex("8002635f5f6275696c74696e5f5f0a62797465730a7100295271012e");
  EXPECT_EQ(parse(no_bytes), PlainValue::bytes(""));
  const std::string some_bytes = from_hex("8002635f5f6275696c74696e5f5f0a62797465730a4b0585522e");
  expect_error<InvalidArgument>([&] { parse(some_bytes); }, {"bytes that are made of something"});
}

TEST(Pickle, BuildsNothingThatIsNotListed) {
  // os.system("true"), as pickle.dumps writes an object with __reduce__.
  const std::string_view attack(
      "\x80\x02"
      "cposix\nsystem\nX\x04\x00\x00\x00true\x85R.",
      32);
  expect_error<InvalidArgument>([&] { parse(attack); }, {"test: byte 2", "posix.system"});
  PickleWriter nested;
  nested.global("builtins", "eval");
  const std::string text = nested.finish();
  expect_error<InvalidArgument>([&] { parse(text); }, {"builtins.eval"});
}

TEST(Pickle, RefusesWhatIsBroken) {
  for (const std::string_view text : {"",
                                      "\x80",
                                      "N",
                                      "(",
                                      ".",
                                      "\x80\x06N.",
                                      "K",
                                      "a.",
                                      "s.",
                                      "t.",
                                      "R.",
                                      "0.",
                                      "h\x05.",
                                      "(K\x01u.",
                                      "]K\x01K\x02s.",
                                      "\xff.",
                                      "X\xff\xff\xff\xff"
                                      "a.",
                                      "(1.",
                                      "cos\n",
                                      "Nb.",
                                      "NQ0."}) {
    EXPECT_THROW(parse(text), InvalidArgument) << text;
  }
  EXPECT_THROW(parse(std::string_view("\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x00\x01.", 12)),
               InvalidArgument);
}

TEST(Pickle, OfAValueThatContainsItselfIsRefusedWithoutALoop) {
  EXPECT_THROW(parse(std::string_view("]q\x00h\x00"
                                      "a.",
                                      6)),
               InvalidArgument);
  // Thirty lists, each twice in the next: small to write, a billion values to copy.
  std::string bomb = "]";
  for (int i = 0; i < 30; ++i) bomb += "q0]h0ah0a";
  bomb += ".";
  EXPECT_THROW(parse(bomb), InvalidArgument);
}

TEST(Pickle, SurvivesDamage) {
  const std::string good =
      pickled(PlainValue::dict({{"betas", PlainValue::tuple({0.9, 0.999})},
                                {"names", PlainValue::list({"a", "b", PlainValue::bytes("c")})},
                                {"step", int64_t{1} << 40}}));
  std::mt19937 random(11);
  for (int i = 0; i < 20000; ++i) {
    std::string bad = good;
    for (unsigned k = 0; k <= random() % 4; ++k) {
      bad[random() % bad.size()] = static_cast<char>(random());
    }
    if (random() % 4 == 0) bad.resize(random() % bad.size());
    try {
      parse(bad);
    } catch (const InvalidArgument&) {
    }
  }
}

}  // namespace pickle_test
}  // namespace tessera::files
