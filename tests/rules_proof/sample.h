#pragma once

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

/// A call of an op, written as a line:
///
///   aten::mm 5x6 6x4                       tensors in order, f64 unless said
///   aten::sum.dim_IntList 5x4 dim={1}      other arguments by name, the rest by default
///   aten::gather 5x4 5x2:i64<4 dim=1       integers from 0 to 3
///   aten::cat [3x4;3x4] dim=0              a list; `-` is None
///   aten::log 4x3:pos                      values in (0.1, 1.1); prob, spd, tri, inc, perm, ...
namespace tessera::test {

struct Sample {
  std::string text;
  c10::OperatorHandle op;
  torch::jit::Stack stack;
};

inline c10::OperatorHandle find_op(std::string_view name) {
  const size_t dot = name.find('.');
  const std::string packet(name.substr(0, dot));
  const std::string overload(dot == std::string_view::npos ? "" : name.substr(dot + 1));
  return c10::Dispatcher::singleton().findSchemaOrThrow(packet.c_str(), overload.c_str());
}

inline std::vector<std::string> split_text(const std::string& text, char at) {
  std::vector<std::string> out;
  std::stringstream stream(text);
  for (std::string part; std::getline(stream, part, at);) {
    if (!part.empty()) out.push_back(part);
  }
  return out;
}

inline at::Tensor make_tensor(const std::string& word) {
  const auto parts = split_text(word, ':');
  std::vector<int64_t> shape;
  if (parts[0] != "scalar") {
    for (const auto& n : split_text(parts[0], 'x')) shape.push_back(std::stoll(n));
  }
  std::string type = parts.size() > 1 ? parts[1] : "f64";
  int64_t below = 10;
  if (const size_t lt = type.find('<'); lt != std::string::npos) {
    below = std::stoll(type.substr(lt + 1));
    type = type.substr(0, lt);
  }
  const auto real = at::TensorOptions().dtype(at::kDouble);
  if (type == "f64") return at::randn(shape, real);
  if (type == "f32") return at::randn(shape, at::kFloat);
  // Small integers: sums of their products are exact.
  if (type == "bf16") return at::randint(-1, 2, shape, at::kBFloat16);
  if (type == "pos") return at::rand(shape, real) + 0.1;
  if (type == "pos32") return at::rand(shape, at::kFloat) + 0.1;
  if (type == "inc") return at::cumsum(at::rand(shape, real), -1) - 1;
  if (type == "prob") return at::rand(shape, real) * 0.8 + 0.1;
  if (type == "spd") {
    const at::Tensor a = at::randn(shape, real);
    return at::matmul(a, a.mT()) + 3 * at::eye(shape.back(), real);
  }
  if (type == "tri") return at::tril(at::rand(shape, real) + 0.5) + at::eye(shape.back(), real);
  if (type == "c128") return at::randn(shape, at::kComplexDouble);
  if (type == "i64") return at::randint(0, below, shape, at::kLong);
  if (type == "i32") return at::randint(0, below, shape, at::kInt);
  if (type == "byte") return at::randint(0, 2, shape, at::kByte);
  if (type == "u8") return at::randint(0, 256, shape, at::kByte);
  // Where groups of equal size begin or end, of `below` elements in all.
  const int64_t group = below / std::max<int64_t>(1, shape.empty() ? 1 : shape[0]);
  if (type == "starts") return at::arange(shape[0], at::kLong) * group;
  if (type == "ends") return at::arange(1, shape[0] + 1, at::kInt) * group;
  if (type == "i8") return at::randint(0, below, shape, at::kChar);
  if (type == "maxima") {  // their places in windows of 2 in each spatial dim
    std::vector<int64_t> input = shape;
    for (size_t d = 2; d < input.size(); ++d) input[d] *= 2;
    const at::Tensor x = at::randn(input, real);
    return shape.size() == 4 ? std::get<1>(at::max_pool2d_with_indices(x, 2))
                             : std::get<1>(at::max_pool3d_with_indices(x, 2));
  }
  if (type == "perm") return at::randperm(shape[0], at::kLong);
  if (type == "piv") return at::arange(1, shape.back() + 1, at::kInt).expand(shape).contiguous();
  if (type == "bool") return at::randint(0, 2, shape, at::kBool);
  throw std::invalid_argument("no such type in a sample: " + word);
}

inline at::Scalar make_scalar(const std::string& v) {
  if (v == "true") return true;
  if (v == "false") return false;
  if (v == "inf") return std::numeric_limits<double>::infinity();
  if (v == "-inf") return -std::numeric_limits<double>::infinity();
  if (v.find_first_of(".e") != std::string::npos) return std::stod(v);
  return static_cast<int64_t>(std::stoll(v));
}

inline c10::IValue make_value(const std::string& v, const c10::TypePtr& type) {
  if (v == "-") return {};
  if (type->kind() == c10::TypeKind::OptionalType) {
    return make_value(v, type->castRaw<c10::OptionalType>()->getElementType());
  }
  if (v.starts_with('{')) {
    const auto items = split_text(v.substr(1, v.size() - 2), ',');
    const auto element = type->castRaw<c10::ListType>()->getElementType();
    if (element->kind() == c10::TypeKind::BoolType) {
      c10::List<bool> list;
      for (const auto& i : items) list.push_back(i == "true");
      return list;
    }
    if (element->kind() == c10::TypeKind::FloatType) {
      c10::List<double> list;
      for (const auto& i : items) list.push_back(std::stod(i));
      return list;
    }
    if (element->kind() == c10::TypeKind::NumberType) {
      c10::List<at::Scalar> list;
      for (const auto& i : items) list.push_back(make_scalar(i));
      return list;
    }
    c10::List<int64_t> list;
    for (const auto& i : items) list.push_back(std::stoll(i));
    return list;
  }
  switch (type->kind()) {
    case c10::TypeKind::StringType:
      return v;
    case c10::TypeKind::FloatType:
      return make_scalar(v).toDouble();
    case c10::TypeKind::NumberType:
      return make_scalar(v);
    case c10::TypeKind::BoolType:
      return v == "true";
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType:
      return static_cast<int64_t>(std::stoll(v));
    case c10::TypeKind::ListType:
      return make_value("{" + v + "}", type);
    default:
      return make_scalar(v);
  }
}

inline bool is_tensor_type(const c10::TypePtr& type) {
  if (type->kind() == c10::TypeKind::OptionalType) {
    return is_tensor_type(type->castRaw<c10::OptionalType>()->getElementType());
  }
  if (type->kind() == c10::TypeKind::ListType) {
    return is_tensor_type(type->castRaw<c10::ListType>()->getElementType());
  }
  return type->kind() == c10::TypeKind::TensorType;
}

inline c10::IValue make_list(const std::string& word, const c10::TypePtr& type) {
  const auto items = split_text(word.substr(1, word.size() - 2), ';');
  const bool optional =
      type->castRaw<c10::ListType>()->getElementType()->kind() == c10::TypeKind::OptionalType;
  if (optional) {
    c10::List<std::optional<at::Tensor>> list;
    for (const auto& i : items)
      list.push_back(i == "-" ? std::optional<at::Tensor>() : make_tensor(i));
    return list;
  }
  c10::List<at::Tensor> list;
  for (const auto& i : items) list.push_back(make_tensor(i));
  return list;
}

inline Sample parse_sample(const std::string& text) {
  const auto words = split_text(text, ' ');
  Sample sample{text, find_op(words[0]), {}};
  const auto& args = sample.op.schema().arguments();
  std::vector<std::optional<c10::IValue>> values(args.size());
  size_t next = 0;
  for (size_t w = 1; w < words.size(); ++w) {
    const size_t equals = words[w].find('=');
    if (equals != std::string::npos) {
      const std::string name = words[w].substr(0, equals);
      bool found = false;
      for (size_t i = 0; i < args.size(); ++i) {
        if (args[i].name() != name) continue;
        const std::string value = words[w].substr(equals + 1);
        values[i] = is_tensor_type(args[i].type()) ? c10::IValue(make_tensor(value))
                                                   : make_value(value, args[i].type());
        found = true;
      }
      if (!found) throw std::invalid_argument("no argument " + name + " in " + text);
      continue;
    }
    while (next < args.size() && (!is_tensor_type(args[next].type()) || values[next])) ++next;
    if (next == args.size()) throw std::invalid_argument("too many tensors in " + text);
    if (words[w] == "-") {
      values[next] = c10::IValue();
    } else if (words[w].starts_with('[')) {
      auto type = args[next].type();
      if (type->kind() == c10::TypeKind::OptionalType)
        type = type->castRaw<c10::OptionalType>()->getElementType();
      values[next] = make_list(words[w], type);
    } else {
      values[next] = c10::IValue(make_tensor(words[w]));
    }
    ++next;
  }
  for (size_t i = 0; i < args.size(); ++i) {
    if (!values[i]) values[i] = args[i].default_value() ? *args[i].default_value() : c10::IValue();
    sample.stack.push_back(*values[i]);
  }
  return sample;
}

}  // namespace tessera::test
