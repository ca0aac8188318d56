#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>
#include <utility>
#include <vector>

/// Visits the tensors in a function's arguments or result, in order: a tensor, or an optional,
/// vector, pair or tuple of such; other types contain none.
namespace tessera::dtensor {

template <class Value>
struct Tensors {
  static void collect(Value&, std::vector<at::Tensor*>&) {}
};

template <class Value>
void collect_tensors(Value& value, std::vector<at::Tensor*>& out) {
  Tensors<Value>::collect(value, out);
}

template <>
struct Tensors<at::Tensor> {
  static void collect(at::Tensor& tensor, std::vector<at::Tensor*>& out) { out.push_back(&tensor); }
};

template <class Value>
struct Tensors<std::optional<Value>> {
  static void collect(std::optional<Value>& value, std::vector<at::Tensor*>& out) {
    if (value) collect_tensors(*value, out);
  }
};

template <class Value>
struct Tensors<std::vector<Value>> {
  static void collect(std::vector<Value>& values, std::vector<at::Tensor*>& out) {
    for (auto& value : values) collect_tensors(value, out);
  }
};

template <class... Values>
struct Tensors<std::tuple<Values...>> {
  static void collect(std::tuple<Values...>& values, std::vector<at::Tensor*>& out) {
    std::apply([&](auto&... value) { (collect_tensors(value, out), ...); }, values);
  }
};

template <class First, class Second>
struct Tensors<std::pair<First, Second>> {
  static void collect(std::pair<First, Second>& values, std::vector<at::Tensor*>& out) {
    collect_tensors(values.first, out);
    collect_tensors(values.second, out);
  }
};

template <class Value>
std::vector<at::Tensor*> tensors_in(Value& value) {
  std::vector<at::Tensor*> out;
  collect_tensors(value, out);
  return out;
}

}  // namespace tessera::dtensor
