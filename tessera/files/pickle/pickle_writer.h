#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>

namespace tessera::files {

/// Writes a pickle, value by value, in the order of the format's stack machine:
///
///   PickleWriter out;
///   out.global("torch", "Size").mark().integer(2).integer(3).tuple().tuple1().reduce();
///   out.finish()                       // torch.Size((2, 3)), as bytes
///
/// Protocol 2, which all readers of PyTorch accept, except that bytes need protocol 3. A class is
/// written once and then referenced from the memo.
class PickleWriter {
 public:
  PickleWriter();

  PickleWriter& none();
  PickleWriter& boolean(bool value);
  PickleWriter& integer(int64_t value);
  PickleWriter& real(double value);
  PickleWriter& text(std::string_view value);
  PickleWriter& bytes(std::string_view value);
  PickleWriter& global(std::string_view module, std::string_view name);

  PickleWriter& mark();
  PickleWriter& tuple();   ///< of the values since the mark
  PickleWriter& tuple1();  ///< of the last value
  /// A tuple of integers.
  PickleWriter& integers(std::span<const int64_t> values);
  PickleWriter& empty_list();
  PickleWriter& appends();  ///< appends the values since the mark to the list before it
  PickleWriter& empty_dict();
  PickleWriter& set_items();  ///< stores keys and values since the mark in the dict before it
  PickleWriter& reduce();     ///< calls the function before the last tuple with that tuple
  PickleWriter& persistent_id();

  /// The whole pickle; no call may follow.
  std::string finish();

 private:
  PickleWriter& opcode(uint8_t code);

  std::string out_;
  std::map<std::string, uint32_t, std::less<>> memo_;
};

}  // namespace tessera::files
