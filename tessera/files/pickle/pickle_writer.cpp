#include "tessera/files/pickle/pickle_writer.h"

#include <bit>
#include <cstring>
#include <limits>

#include "tessera/base/errors.h"
#include "tessera/files/pickle/pickle_opcodes.h"

namespace tessera::files {
namespace {

template <typename T>
void append_number(std::string& out, T value) {
  char bytes[sizeof(T)];
  std::memcpy(bytes, &value, sizeof(T));
  out.append(bytes, sizeof(T));
}

}  // namespace

PickleWriter::PickleWriter() {
  opcode(pickle::kProtocol);
  out_ += '\x02';
}

PickleWriter& PickleWriter::opcode(uint8_t code) {
  out_ += static_cast<char>(code);
  return *this;
}

PickleWriter& PickleWriter::none() { return opcode(pickle::kNone); }
PickleWriter& PickleWriter::boolean(bool value) {
  return opcode(value ? pickle::kTrue : pickle::kFalse);
}

PickleWriter& PickleWriter::integer(int64_t value) {
  if (value >= 0 && value <= std::numeric_limits<uint8_t>::max()) {
    opcode(pickle::kBinInt1);
    append_number(out_, static_cast<uint8_t>(value));
  } else if (value >= 0 && value <= std::numeric_limits<uint16_t>::max()) {
    opcode(pickle::kBinInt2);
    append_number(out_, static_cast<uint16_t>(value));
  } else if (value >= std::numeric_limits<int32_t>::min() &&
             value <= std::numeric_limits<int32_t>::max()) {
    opcode(pickle::kBinInt);
    append_number(out_, static_cast<int32_t>(value));
  } else {
    opcode(pickle::kLong1);
    out_ += '\x08';
    append_number(out_, value);
  }
  return *this;
}

PickleWriter& PickleWriter::real(double value) {
  opcode(pickle::kBinFloat);
  append_number(out_, __builtin_bswap64(std::bit_cast<uint64_t>(value)));
  return *this;
}

PickleWriter& PickleWriter::text(std::string_view value) {
  require(value.size() <= std::numeric_limits<uint32_t>::max(), "a text of ", value.size(),
          " bytes is too long for a pickle; store it as bytes");
  opcode(pickle::kBinUnicode);
  append_number(out_, static_cast<uint32_t>(value.size()));
  out_ += value;
  return *this;
}

PickleWriter& PickleWriter::bytes(std::string_view value) {
  if (value.size() <= std::numeric_limits<uint32_t>::max()) {
    opcode(pickle::kBinBytes);
    append_number(out_, static_cast<uint32_t>(value.size()));
    if (out_[1] < 3) out_[1] = 3;
  } else {
    opcode(pickle::kBinBytes8);
    append_number(out_, static_cast<uint64_t>(value.size()));
    out_[1] = 4;
  }
  out_ += value;
  return *this;
}

PickleWriter& PickleWriter::global(std::string_view module, std::string_view name) {
  std::string full = join_text(module, "\n", name, "\n");
  if (const auto found = memo_.find(full); found != memo_.end()) {
    opcode(pickle::kLongBinGet);
    append_number(out_, found->second);
    return *this;
  }
  opcode(pickle::kGlobal);
  out_ += full;
  opcode(pickle::kLongBinPut);
  append_number(out_, static_cast<uint32_t>(memo_.size()));
  memo_.emplace(std::move(full), static_cast<uint32_t>(memo_.size()));
  return *this;
}

PickleWriter& PickleWriter::mark() { return opcode(pickle::kMark); }
PickleWriter& PickleWriter::tuple() { return opcode(pickle::kTuple); }
PickleWriter& PickleWriter::tuple1() { return opcode(pickle::kTuple1); }

PickleWriter& PickleWriter::integers(std::span<const int64_t> values) {
  mark();
  for (const int64_t value : values) integer(value);
  return tuple();
}

PickleWriter& PickleWriter::empty_list() { return opcode(pickle::kEmptyList); }
PickleWriter& PickleWriter::appends() { return opcode(pickle::kAppends); }
PickleWriter& PickleWriter::empty_dict() { return opcode(pickle::kEmptyDict); }
PickleWriter& PickleWriter::set_items() { return opcode(pickle::kSetItems); }
PickleWriter& PickleWriter::reduce() { return opcode(pickle::kReduce); }
PickleWriter& PickleWriter::persistent_id() { return opcode(pickle::kBinPersistentId); }

std::string PickleWriter::finish() {
  opcode(pickle::kStop);
  return std::move(out_);
}

}  // namespace tessera::files
