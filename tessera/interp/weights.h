#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Storage.h>

#include <memory>
#include <optional>
#include <unordered_map>

#include "tessera/program/archive.h"

namespace tessera::interp {

/// The tensors of an archive: parameters, buffers, constants.
///
/// On the CPU they are views of the mapped file: nothing is read before an op does, and writes stay
/// in this process. Tensors of one record share one storage, so tied weights stay tied. On another
/// device each record is copied once.
class Weights {
 public:
  /// `device`: where all tensors go; absent: where the program says.
  Weights(std::shared_ptr<const program::Archive> archive, std::optional<c10::Device> device);

  at::Tensor weight(const program::Payload& payload);
  at::Tensor constant(const program::Payload& payload);

 private:
  at::Tensor tensor(const program::Payload& payload, std::span<const std::byte> bytes);
  const c10::Storage& storage(std::span<const std::byte> bytes, c10::Device device);

  std::shared_ptr<const program::Archive> archive_;
  std::optional<c10::Device> device_;
  std::unordered_map<const std::byte*, c10::Storage> storages_;  // by the record's first byte
};

}  // namespace tessera::interp
