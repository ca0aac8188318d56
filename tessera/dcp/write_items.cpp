#include "tessera/base/shape.h"
#include "tessera/dcp/items.h"
#include "tessera/dcp/torch_dtypes.h"
#include "tessera/files/pickle/plain_pickle.h"
#include "tessera/files/zip_writer.h"

namespace tessera::dcp {
namespace {

using files::PickleWriter;

std::string tensor_pickle(DType dtype, std::span<const int64_t> sizes) {
  const std::string_view storage = storage_name(dtype);
  const bool untyped = storage.empty();
  PickleWriter out;
  out.global("torch._utils", untyped ? "_rebuild_tensor_v3" : "_rebuild_tensor_v2").mark();
  out.mark().text("storage");
  untyped ? out.global("torch.storage", "UntypedStorage") : out.global("torch", storage);
  out.text("0").text("cpu");
  out.integer(untyped ? numel_of(sizes) * dtype_bytes(dtype) : numel_of(sizes));
  out.tuple().persistent_id();
  out.integer(0).integers(sizes).integers(contiguous_stride(sizes)).boolean(false);
  out.global("collections", "OrderedDict").mark().tuple().reduce();
  if (untyped) out.global("torch", torch_name(dtype));
  out.tuple().reduce();
  return out.finish();
}

}  // namespace

StoredItem write_tensor_item(files::OutputFile& file, const std::string& file_name, DType dtype,
                             std::span<const int64_t> sizes, const WriteBytes& write) {
  const uint64_t start = file.position();
  files::ZipWriter zip(file);
  zip.add("archive/data.pkl", tensor_pickle(dtype, sizes));
  zip.add("archive/byteorder", "little");
  zip.begin("archive/data/0", static_cast<uint64_t>(numel_of(sizes) * dtype_bytes(dtype)));
  write([&](std::span<const std::byte> part) { zip.write(part); });
  zip.add("archive/version", "3\n");
  zip.finish();
  return {.file = file_name, .offset = start, .length = file.position() - start};
}

StoredItem write_value_item(files::OutputFile& file, const std::string& file_name,
                            const files::PlainValue& value) {
  const uint64_t start = file.position();
  PickleWriter out;
  write(out, value);
  files::ZipWriter zip(file);
  zip.add("archive/data.pkl", out.finish());
  zip.add("archive/byteorder", "little");
  zip.add("archive/version", "3\n");
  zip.finish();
  return {.file = file_name, .offset = start, .length = file.position() - start};
}

}  // namespace tessera::dcp
