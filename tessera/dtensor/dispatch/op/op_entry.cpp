#include "tessera/dtensor/dispatch/op/op_entry.h"

#include <ATen/core/function_schema.h>

#include <atomic>

namespace tessera::dtensor {
namespace {

ArgKind kind_of(const c10::Type& type) {
  switch (type.kind()) {
    case c10::TypeKind::OptionalType:
      return kind_of(*type.castRaw<c10::OptionalType>()->getElementType());
    case c10::TypeKind::TensorType:
      return ArgKind::tensor;
    case c10::TypeKind::NumberType:
    case c10::TypeKind::FloatType:
    case c10::TypeKind::ComplexType:
      return ArgKind::scalar;
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType:
    case c10::TypeKind::BoolType:
    case c10::TypeKind::ScalarTypeType:
    case c10::TypeKind::LayoutType:
    case c10::TypeKind::MemoryFormatType:
      return ArgKind::integer;
    case c10::TypeKind::StringType:
      return ArgKind::text;
    case c10::TypeKind::GeneratorType:
      return ArgKind::generator;
    case c10::TypeKind::ListType: {
      const ArgKind element = kind_of(*type.castRaw<c10::ListType>()->getElementType());
      if (element == ArgKind::tensor) return ArgKind::tensor_list;
      if (element == ArgKind::integer) return ArgKind::integer_list;
      if (element == ArgKind::scalar) return ArgKind::scalar_list;
      return ArgKind::other;
    }
    default:
      return ArgKind::other;
  }
}

bool is_tensor_result(const c10::Argument& result) {
  const ArgKind kind = kind_of(*result.type());
  return kind == ArgKind::tensor || kind == ArgKind::tensor_list;
}

}  // namespace

OpEntry::OpEntry(const c10::OperatorHandle& op) {
  static std::atomic<uint32_t> next_id{0};
  id = next_id.fetch_add(1);
  const auto& schema = op.schema();
  name = schema.name();
  if (!schema.overload_name().empty()) name += "." + schema.overload_name();
  bool any_alias = false;
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const auto& arg = schema.arguments()[i];
    args.push_back(kind_of(*arg.type()));
    const auto* alias = arg.alias_info();
    if (alias == nullptr) continue;
    any_alias = true;
    if (!alias->isWrite()) continue;
    written.push_back(static_cast<int>(i));
    is_out = is_out || arg.is_out();
  }
  for (const auto& result : schema.returns()) {
    int from = -1;
    const auto* alias = result.alias_info();
    for (int w : written) {
      const auto* written_alias = schema.arguments()[static_cast<size_t>(w)].alias_info();
      if (alias != nullptr && alias->isWrite() &&
          alias->beforeSets() == written_alias->beforeSets()) {
        from = w;
      }
    }
    result_alias.push_back(from);
    result_is_list.push_back(kind_of(*result.type()) == ArgKind::tensor_list);
    result_is_tensor.push_back(is_tensor_result(result));
  }
  is_view = any_alias && written.empty();
  sets_bit = name == "aten::_conj" || name == "aten::_neg_view";
  is_fused = name.starts_with("aten::_fused_");
  hidden = hidden_args(schema);
}

}  // namespace tessera::dtensor
