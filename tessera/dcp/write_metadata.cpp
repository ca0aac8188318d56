#include "tessera/base/errors.h"
#include "tessera/dcp/metadata.h"
#include "tessera/dcp/torch_dtypes.h"
#include "tessera/files/pickle/pickle_writer.h"

namespace tessera::dcp {
namespace {

using files::PickleWriter;

constexpr std::string_view kMetadataModule = "torch.distributed.checkpoint.metadata";
constexpr std::string_view kFilesystem = "torch.distributed.checkpoint.filesystem";
constexpr std::string_view kVersion = "1.0.0";

void write_size(PickleWriter& out, std::span<const int64_t> values) {
  out.global("torch", "Size").integers(values).tuple1().reduce();
}

void write_entry(PickleWriter& out, const std::string& name, const Entry& entry) {
  if (std::holds_alternative<ValueEntry>(entry)) {
    out.global(kMetadataModule, "BytesStorageMetadata").mark().tuple().reduce();
    return;
  }
  const auto& tensor = std::get<TensorEntry>(entry);
  ensure(tensor.dtype.has_value(), join_text("no dtype of ", name));
  out.global(kMetadataModule, "TensorStorageMetadata").mark();
  out.global(kMetadataModule, "TensorProperties").global("torch", torch_name(*tensor.dtype));
  out.tuple1().reduce();
  write_size(out, tensor.shape);
  out.empty_list().mark();
  for (const auto& chunk : tensor.chunks) {
    out.global(kMetadataModule, "ChunkStorageMetadata").mark();
    write_size(out, chunk.box.begin);
    write_size(out, chunk.box.shape());
    out.tuple().reduce();
  }
  out.appends().tuple().reduce();
}

void write_info(PickleWriter& out, const StoredItem& item) {
  out.global(kFilesystem, "_StorageInfo").mark().text(item.file);
  out.integer(static_cast<int64_t>(item.offset)).integer(static_cast<int64_t>(item.length));
  out.tuple().reduce();
}

void write_places(PickleWriter& out, const std::string& name, const Entry& entry) {
  if (const auto* value = std::get_if<ValueEntry>(&entry)) {
    out.global(kMetadataModule, "MetadataIndex").mark().text(name).tuple().reduce();
    return write_info(out, value->item);
  }
  int64_t i = 0;
  for (const auto& chunk : std::get<TensorEntry>(entry).chunks) {
    out.global(kMetadataModule, "MetadataIndex").mark().text(name);
    write_size(out, chunk.box.begin);
    out.integer(i++).tuple().reduce();  // the index saves PyTorch's loader a search
    write_info(out, chunk.item);
  }
}

void write_path(PickleWriter& out, const std::string& name, const Metadata& metadata) {
  out.text(name).mark();
  const auto found = metadata.paths.find(name);
  if (found == metadata.paths.end()) {
    out.text(name);
  } else {
    for (const auto& part : found->second) {
      if (const auto* index = std::get_if<int64_t>(&part)) {
        out.integer(*index);
      } else {
        out.text(std::get<std::string>(part));
      }
    }
  }
  out.tuple();
}

}  // namespace

std::string write_metadata(const Metadata& metadata) {
  PickleWriter out;
  out.global(kMetadataModule, "Metadata").mark();
  out.empty_dict().mark();
  for (const auto& [name, entry] : metadata.entries) {
    out.text(name);
    write_entry(out, name, entry);
  }
  out.set_items();
  out.empty_dict().mark();
  for (const auto& [name, entry] : metadata.entries) write_path(out, name, metadata);
  out.set_items();
  out.empty_dict().mark();
  for (const auto& [name, entry] : metadata.entries) write_places(out, name, entry);
  out.set_items();
  out.none().text(kVersion).tuple().reduce();
  return out.finish();
}

}  // namespace tessera::dcp
