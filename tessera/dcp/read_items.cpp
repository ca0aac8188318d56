#include "tessera/base/errors.h"
#include "tessera/dcp/items.h"
#include "tessera/dcp/torch_dtypes.h"
#include "tessera/files/pickle/plain_pickle.h"
#include "tessera/files/zip_reader.h"

namespace tessera::dcp {
namespace {

using files::Pickle;
using files::PickleRef;
using files::ZipReader;
using files::ZipRecord;

constexpr std::string_view kRebuild2 = "torch._utils._rebuild_tensor_v2";
constexpr std::string_view kRebuild3 = "torch._utils._rebuild_tensor_v3";
constexpr std::string_view kUntyped = "torch.storage.UntypedStorage";

std::span<const std::string_view> tensor_globals() {
  static const std::vector<std::string_view> names = [] {
    std::vector<std::string_view> out = {kRebuild2, kRebuild3, kUntyped, "collections.OrderedDict"};
    const auto dtypes = dtype_globals();
    out.insert(out.end(), dtypes.begin(), dtypes.end());
    return out;
  }();
  return names;
}

ZipReader open_item(const std::shared_ptr<const files::InputFile>& file, const StoredItem& item) {
  const uint64_t size = file->size();
  require(item.offset <= size && item.length <= size - item.offset, file->path(), " has ", size,
          " bytes, but an item is said to be at ", item.offset, " with ", item.length,
          ": the file is truncated, or belongs to another checkpoint");
  return ZipReader(file, item.offset, item.length);
}

/// "archive/" of "archive/data.pkl": the folder of all records.
std::string root_folder(const ZipReader& zip) {
  for (const auto& record : zip.records()) {
    if (record.name.ends_with("/data.pkl")) {
      return record.name.substr(0, record.name.size() - std::string_view("data.pkl").size());
    }
  }
  throw InvalidArgument(join_text(zip.path(), ": not what torch.save writes: no data.pkl"));
}

std::span<const std::byte> pickle_bytes(const ZipReader& zip, const std::string& root) {
  const ZipRecord* record = zip.find(root + "data.pkl");
  zip.verify(*record);
  return zip.bytes(*record);
}

void check_byte_order(const ZipReader& zip, const std::string& root) {
  const ZipRecord* record = zip.find(root + "byteorder");
  if (record != nullptr && zip.text(*record) != "little") {
    throw NotSupported(join_text(zip.path(), " was written on a big-endian machine"));
  }
}

/// The last element's index must be inside of the storage.
void check_strides(const TensorItem& item, int64_t first, uint64_t elements,
                   const std::string& place) {
  uint64_t last = static_cast<uint64_t>(first);
  bool fits = first >= 0 && item.sizes.size() == item.strides.size();
  bool empty = false;
  for (size_t d = 0; fits && d < item.sizes.size(); ++d) {
    fits = item.sizes[d] >= 0 && item.strides[d] >= 0;
    if (item.sizes[d] == 0) empty = true;
    uint64_t reach = 0;
    fits = fits && (item.sizes[d] == 0 ||
                    !__builtin_mul_overflow(static_cast<uint64_t>(item.sizes[d] - 1),
                                            static_cast<uint64_t>(item.strides[d]), &reach));
    fits = fits && !__builtin_add_overflow(last, reach, &last);
  }
  require(
      fits && (empty || last < elements), place, ": a tensor of ",
      [&] {
        return join_text("sizes ", list_text(item.sizes), ", strides ", list_text(item.strides));
      },
      " does not fit into a storage of ", elements, " elements");
}

/// The record that a storage is in: ('storage', class, key, device, count).
const ZipRecord& find_storage(const ZipReader& zip, const std::string& root, PickleRef storage,
                              TensorItem& item) {
  const auto id = storage.persistent_id().items();
  if (id.size() != 5 || id[0].text() != "storage") storage.fail("an unknown kind of storage");
  const ZipRecord* record = zip.find(join_text(root, "data/", id[2].text()));
  if (record == nullptr) storage.fail(join_text("it lacks the data of storage ", id[2].text()));
  const int64_t count = id[4].integer();
  uint64_t bytes = 0;
  if (id[1].global() == kUntyped) {
    bytes = static_cast<uint64_t>(count);
  } else {
    const auto dtype = dtype_from_storage_name(id[1].global());
    if (!dtype) storage.fail(join_text("a storage of class ", id[1].global()));
    item.dtype = *dtype;
    if (count < 0 || __builtin_mul_overflow(static_cast<uint64_t>(count),
                                            static_cast<uint64_t>(dtype_bytes(*dtype)), &bytes)) {
      storage.fail("a storage of an impossible size");
    }
  }
  if (bytes != record->size) {
    storage.fail(join_text("a storage of ", bytes, " bytes in a record of ", record->size));
  }
  return *record;
}

}  // namespace

TensorItem read_tensor_item(const std::shared_ptr<const files::InputFile>& file,
                            const StoredItem& stored) {
  const ZipReader zip = open_item(file, stored);
  const std::string root = root_folder(zip);
  const Pickle pickle =
      Pickle::parse(pickle_bytes(zip, root), {.document = zip.path(), .globals = tensor_globals()});
  const PickleRef tensor = pickle.root();
  const bool untyped = tensor.is_object(kRebuild3);
  if (!untyped && !tensor.is_object(kRebuild2)) tensor.fail("it holds no tensor");
  const auto arguments = tensor.arguments();
  if (arguments.size() < (untyped ? 7U : 6U)) tensor.fail("a tensor with too few properties");
  check_byte_order(zip, root);
  TensorItem item;
  const ZipRecord& record = find_storage(zip, root, arguments[0], item);
  if (untyped) {
    const auto dtype = dtype_from_torch_name(arguments[6].global());
    if (!dtype) tensor.fail(join_text("elements of type ", arguments[6].global()));
    item.dtype = *dtype;
  }
  const size_t metadata = untyped ? 7 : 6;
  if (arguments.size() > metadata && !arguments[metadata].is_none() &&
      !arguments[metadata].members().empty()) {
    throw NotSupported(join_text(zip.path(), " holds a conjugated or negated view"));
  }
  item.sizes = arguments[2].integers();
  item.strides = arguments[3].integers();
  const int64_t first = arguments[1].integer();
  const auto width = static_cast<uint64_t>(dtype_bytes(item.dtype));
  check_strides(item, first, record.size / width, zip.path());
  for (size_t d = 0; d < item.sizes.size(); ++d) {
    if (item.sizes[d] <= 1) item.strides[d] = 1;  // of no meaning, and anything may be there
  }
  item.record_offset = stored.offset + record.offset;
  item.record_size = record.size;
  item.record_crc = record.crc;
  item.offset = item.record_offset + static_cast<uint64_t>(first) * width;
  return item;
}

void verify_value_item(const std::shared_ptr<const files::InputFile>& file,
                       const StoredItem& stored) {
  const ZipReader zip = open_item(file, stored);
  pickle_bytes(zip, root_folder(zip));
}

files::PlainValue read_value_item(const std::shared_ptr<const files::InputFile>& file,
                                  const StoredItem& stored) {
  const ZipReader zip = open_item(file, stored);
  const std::string root = root_folder(zip);
  const Pickle pickle = Pickle::parse(
      pickle_bytes(zip, root), {.document = zip.path(), .globals = files::plain_value_globals()});
  return files::plain_value(pickle.root());
}

}  // namespace tessera::dcp
