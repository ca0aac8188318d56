#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tessera/dcp/metadata.h"
#include "tessera/files/input_file.h"
#include "tessera/files/output_file.h"
#include "tessera/files/pickle/plain_value.h"

/// One item of a .distcp file: a complete archive as torch.save writes it, of one tensor (a box of
/// a larger one) or one plain value.
namespace tessera::dcp {

/// Calls the sink with all bytes of a tensor in row-major order, in any parts.
using WriteBytes = std::function<void(const std::function<void(std::span<const std::byte>)>& sink)>;

/// Appends the item and says where it is; `file_name` is the name in the directory.
StoredItem write_tensor_item(files::OutputFile& file, const std::string& file_name, DType dtype,
                             std::span<const int64_t> sizes, const WriteBytes& write);
StoredItem write_value_item(files::OutputFile& file, const std::string& file_name,
                            const files::PlainValue& value);

/// How the elements of a stored tensor are laid out in the file.
struct TensorItem {
  DType dtype = DType::f32;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;  ///< in elements
  uint64_t offset = 0;           ///< of the first element, in the file
  /// The record that holds them, in the file, and its checksum.
  uint64_t record_offset = 0;
  uint64_t record_size = 0;
  uint32_t record_crc = 0;
};

/// Throws InvalidArgument that names the file and the byte for whatever does not fit together; no
/// element is read. NotSupported for forms that cannot be copied as they are (big-endian,
/// conjugated).
TensorItem read_tensor_item(const std::shared_ptr<const files::InputFile>& file,
                            const StoredItem& item);

/// The value, or an InvalidArgument that says which class it is of.
files::PlainValue read_value_item(const std::shared_ptr<const files::InputFile>& file,
                                  const StoredItem& item);

/// Throws InvalidArgument if the item is damaged. Its value is not read and may be of any class.
void verify_value_item(const std::shared_ptr<const files::InputFile>& file, const StoredItem& item);

}  // namespace tessera::dcp
