#include "tessera/interp/convert_argument.h"

#include <ATen/ScalarOps.h>
#include <ATen/core/List.h>
#include <ATen/core/jit_type.h>
#include <c10/core/Layout.h>
#include <c10/core/MemoryFormat.h>

#include <array>

#include "tessera/base/errors.h"

namespace tessera::interp {
namespace {

using c10::IValue;
using c10::TypeKind;
using program::ArgKind;
using program::Argument;
using program::ValueId;
using program::ValueKind;

/// By the format's number; -1: not known.
constexpr std::array<int, 8> kLayouts = {-1, 1, 2, 4, 5, 6, 3, 0};
constexpr std::array<int, 5> kMemoryFormats = {-1, 0, 2, 3, 1};

ArgSource constant(IValue value) { return {.constant = std::move(value)}; }

bool is_empty_list(const Argument& arg) {
  return std::visit(
      [](const auto& data) {
        if constexpr (requires {
                        data.empty();
                        data.push_back(data.front());
                      }) {
          return data.empty();
        }
        return false;
      },
      arg.data);
}

class Converter {
 public:
  Converter(const Argument& arg, const c10::Argument& formal, const ConvertOptions& options)
      : arg_(arg), formal_(formal), options_(options) {}

  ArgSource convert(const c10::Type& type) const {
    switch (type.kind()) {
      case TypeKind::OptionalType:
        return optional(type);
      case TypeKind::TensorType:
        return tensor();
      case TypeKind::NumberType:
        return number();
      case TypeKind::IntType:
      case TypeKind::SymIntType:
        return integer();
      case TypeKind::FloatType:
        return floating();
      case TypeKind::BoolType:
      case TypeKind::SymBoolType:
        return boolean();
      case TypeKind::StringType:
      case TypeKind::AnyType:
        return text();
      case TypeKind::DeviceObjType:
        if (arg_.kind != ArgKind::device) mismatch();
        return constant(options_.device.value_or(to_device(arg_.as<program::Device>())));
      case TypeKind::ScalarTypeType:
        if (arg_.kind != ArgKind::scalar_type) mismatch();
        return constant(static_cast<int64_t>(arg_.as<DType>()));
      case TypeKind::LayoutType:
        if (arg_.kind != ArgKind::layout) mismatch();
        return by_number(kLayouts, static_cast<int64_t>(arg_.as<program::Layout>()));
      case TypeKind::MemoryFormatType:
        if (arg_.kind != ArgKind::memory_format) mismatch();
        return by_number(kMemoryFormats, arg_.as<int64_t>());
      case TypeKind::ListType:
        return list(*type.castRaw<c10::ListType>()->getElementType());
      default:
        throw NotSupported(join_text("argument ", formal_.name(), " is of type ",
                                     formal_.type()->str(), ", which only Python can pass"));
    }
  }

  /// Whatever the file passes, as it is.
  ArgSource plain() const {
    switch (arg_.kind) {
      case ArgKind::none:
        return constant({});
      case ArgKind::tensor:
        return value(arg_.as<ValueId>());
      case ArgKind::optional_tensor:
        return optional_value();
      case ArgKind::string:
        return constant(arg_.as<std::string>());
      default:
        return number();
    }
  }

 private:
  [[noreturn]] void mismatch() const {
    throw InvalidArgument(join_text("argument ", formal_.name(), " is of type ",
                                    formal_.type()->str(), ", but the file passes ",
                                    program::wire_name(arg_.kind)));
  }

  template <size_t n>
  ArgSource by_number(const std::array<int, n>& table, int64_t code) const {
    if (code < 0 || code >= static_cast<int64_t>(n) || table[static_cast<size_t>(code)] < 0) {
      throw InvalidArgument(
          join_text("argument ", formal_.name(), " is ", code, ", a number without meaning"));
    }
    return constant(static_cast<int64_t>(table[static_cast<size_t>(code)]));
  }

  ArgSource value(ValueId id, Conversion conversion = Conversion::none) const {
    return {.kind = ArgSource::Kind::value,
            .conversion = conversion,
            .value = options_.slots[id.index]};
  }
  ArgSource optional_value() const {
    const auto& id = arg_.as<std::optional<ValueId>>();
    return id ? value(*id) : constant({});
  }

  ArgSource optional(const c10::Type& type) const {
    if (arg_.kind == ArgKind::none) return constant({});
    if (arg_.kind == ArgKind::optional_tensor && !arg_.as<std::optional<ValueId>>()) {
      return constant({});
    }
    return convert(*type.castRaw<c10::OptionalType>()->getElementType());
  }

  ArgSource tensor() const {
    if (arg_.kind == ArgKind::tensor) return value(arg_.as<ValueId>());
    if (arg_.kind == ArgKind::optional_tensor) return optional_value();
    ArgSource source = number();
    source.conversion = Conversion::to_tensor;
    if (source.kind == ArgSource::Kind::constant) {
      at::Tensor wrapped = at::scalar_to_tensor(source.constant.toScalar());
      wrapped.unsafeGetTensorImpl()->set_wrapped_number(true);
      return constant(std::move(wrapped));
    }
    return source;
  }

  /// An int, float, bool or complex number, or a value that is one.
  ArgSource number() const {
    const auto either = [&](const auto& item) {
      if (const auto* id = std::get_if<ValueId>(&item)) return value(*id);
      return constant(std::get<0>(item));
    };
    switch (arg_.kind) {
      case ArgKind::integer:
        return constant(arg_.as<int64_t>());
      case ArgKind::floating:
        return constant(arg_.as<double>());
      case ArgKind::boolean:
        return constant(arg_.as<bool>());
      case ArgKind::complex:
        return constant(c10::complex<double>(arg_.as<std::complex<double>>()));
      case ArgKind::sym_int:
        return either(arg_.as<program::IntOrValue>());
      case ArgKind::sym_float:
        return either(arg_.as<program::FloatOrValue>());
      case ArgKind::sym_bool:
        return either(arg_.as<program::BoolOrValue>());
      default:
        mismatch();
    }
  }

  ArgSource integer() const {
    if (arg_.kind == ArgKind::floating || arg_.kind == ArgKind::sym_float ||
        arg_.kind == ArgKind::complex) {
      mismatch();
    }
    ArgSource source = number();
    if (source.constant.isBool()) return constant(static_cast<int64_t>(source.constant.toBool()));
    return source;
  }

  ArgSource floating() const {
    if (arg_.kind == ArgKind::complex) mismatch();
    ArgSource source = number();
    if (source.kind == ArgSource::Kind::constant) {
      return constant(source.constant.toScalar().toDouble());
    }
    source.conversion = Conversion::to_float;
    return source;
  }

  ArgSource boolean() const {
    if (arg_.kind != ArgKind::boolean && arg_.kind != ArgKind::sym_bool) mismatch();
    return number();
  }

  ArgSource text() const {
    if (arg_.kind != ArgKind::string) mismatch();
    const auto& given = arg_.as<std::string>();
    const bool is_group = formal_.name() == "group_name" && options_.group_name;
    return constant(is_group ? options_.group_name(given) : given);
  }

  ArgSource list(const c10::Type& element) const {
    switch (element.kind()) {
      case TypeKind::TensorType:
        return tensors();
      case TypeKind::OptionalType:
        return optional_tensors(element);
      case TypeKind::IntType:
      case TypeKind::SymIntType:
        return ints();
      case TypeKind::FloatType:
        return floats();
      case TypeKind::BoolType:
        return bools();
      case TypeKind::StringType:
        return strings();
      case TypeKind::NumberType:
        return numbers();
      default:
        throw NotSupported(join_text("argument ", formal_.name(), " is of type ",
                                     formal_.type()->str(), ", which this library cannot pass"));
    }
  }

  ListItem item(ValueId id) const { return {.value = options_.slots[id.index], .constant = {}}; }
  ListItem item(const std::optional<ValueId>& id) const {
    return id ? item(*id) : ListItem{.value = std::nullopt, .constant = {}};
  }
  template <typename T>
  ListItem item(const std::variant<T, ValueId>& either) const {
    if (const auto* id = std::get_if<ValueId>(&either)) return item(*id);
    return {.value = std::nullopt, .constant = std::get<T>(either)};
  }
  template <typename List>
  ArgSource items(ArgSource::Kind kind, const List& list) const {
    ArgSource source{.kind = kind};
    for (const auto& one : list) source.items.push_back(item(one));
    return source;
  }

  ArgSource tensors() const {
    if (is_empty_list(arg_)) return constant(c10::List<at::Tensor>());
    if (arg_.kind != ArgKind::tensors) mismatch();
    return items(ArgSource::Kind::tensors, arg_.as<std::vector<ValueId>>());
  }

  ArgSource optional_tensors(const c10::Type& element) const {
    if (element.castRaw<c10::OptionalType>()->getElementType()->kind() != TypeKind::TensorType) {
      mismatch();
    }
    if (is_empty_list(arg_)) return constant(c10::List<std::optional<at::Tensor>>());
    constexpr auto kKind = ArgSource::Kind::optional_tensors;
    if (arg_.kind == ArgKind::tensors) return items(kKind, arg_.as<std::vector<ValueId>>());
    if (arg_.kind != ArgKind::optional_tensors) mismatch();
    return items(kKind, arg_.as<std::vector<std::optional<ValueId>>>());
  }

  ArgSource ints() const {
    if (is_empty_list(arg_)) return constant(c10::List<int64_t>());
    if (arg_.kind == ArgKind::ints) {
      return constant(c10::List<int64_t>(arg_.as<std::vector<int64_t>>()));
    }
    if (arg_.kind == ArgKind::sym_ints) {
      return items(ArgSource::Kind::ints, arg_.as<std::vector<program::IntOrValue>>());
    }
    // int[2] takes one number for all.
    const bool one = arg_.kind == ArgKind::integer || arg_.kind == ArgKind::sym_int;
    if (!one || !formal_.N()) mismatch();
    const ArgSource single = integer();
    ArgSource source{.kind = ArgSource::Kind::ints};
    for (int32_t i = 0; i < *formal_.N(); ++i) {
      if (single.kind == ArgSource::Kind::value) {
        source.items.push_back({.value = single.value, .constant = {}});
      } else {
        source.items.push_back({.value = std::nullopt, .constant = single.constant});
      }
    }
    return source;
  }

  ArgSource floats() const {
    if (is_empty_list(arg_)) return constant(c10::List<double>());
    if (arg_.kind == ArgKind::floats) {
      return constant(c10::List<double>(arg_.as<std::vector<double>>()));
    }
    if (arg_.kind == ArgKind::ints) {
      c10::List<double> out;
      for (const int64_t one : arg_.as<std::vector<int64_t>>()) {
        out.push_back(static_cast<double>(one));
      }
      return constant(std::move(out));
    }
    if (arg_.kind != ArgKind::sym_floats) mismatch();
    return items(ArgSource::Kind::floats, arg_.as<std::vector<program::FloatOrValue>>());
  }

  ArgSource bools() const {
    if (is_empty_list(arg_)) return constant(c10::List<bool>());
    if (arg_.kind == ArgKind::bools) {
      c10::List<bool> out;
      for (const bool one : arg_.as<std::vector<bool>>()) out.push_back(one);
      return constant(std::move(out));
    }
    if (arg_.kind != ArgKind::sym_bools) mismatch();
    return items(ArgSource::Kind::bools, arg_.as<std::vector<program::BoolOrValue>>());
  }

  ArgSource strings() const {
    if (is_empty_list(arg_)) return constant(c10::List<std::string>());
    if (arg_.kind != ArgKind::strings) mismatch();
    return constant(c10::List<std::string>(arg_.as<std::vector<std::string>>()));
  }

  ArgSource numbers() const {
    c10::impl::GenericList out(c10::NumberType::get());
    if (arg_.kind == ArgKind::ints) {
      for (const int64_t one : arg_.as<std::vector<int64_t>>()) out.push_back(one);
    } else if (arg_.kind == ArgKind::floats) {
      for (const double one : arg_.as<std::vector<double>>()) out.push_back(one);
    } else if (!is_empty_list(arg_)) {
      mismatch();
    }
    return constant(std::move(out));
  }

  const Argument& arg_;
  const c10::Argument& formal_;
  const ConvertOptions& options_;
};

}  // namespace

c10::Device to_device(const program::Device& device) {
  try {
    const c10::Device type(device.type);
    if (!device.index) return type;
    return {type.type(), static_cast<c10::DeviceIndex>(*device.index)};
  } catch (const c10::Error&) {
    throw InvalidArgument(join_text("'", device.type, "' with index ", device.index.value_or(-1),
                                    " is not a device of libtorch"));
  }
}

ArgSource convert_argument(const Argument& arg, const c10::Argument& formal,
                           const ConvertOptions& options) {
  return Converter(arg, formal, options).convert(*formal.real_type());
}

ArgSource default_argument(const c10::Argument& formal) {
  if (formal.default_value()) return constant(*formal.default_value());
  // Python passes None for what it may leave out.
  if (formal.type()->kind() == TypeKind::OptionalType) return constant({});
  throw InvalidArgument(join_text("argument ", formal.name(), " of type ", formal.type()->str(),
                                  " is missing and has no default"));
}

ArgSource convert_plain(const Argument& arg, const ConvertOptions& options) {
  static const c10::Argument kAny("value", c10::AnyType::get());
  return Converter(arg, kAny, options).plain();
}

}  // namespace tessera::interp
