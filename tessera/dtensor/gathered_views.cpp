#include "tessera/base/errors.h"
#include "tessera/comm/call_site.h"
#include "tessera/dtensor/composite.h"
#include "tessera/dtensor/dispatch.h"
#include "tessera/exec/redistribute.h"

/// A view that needs elements of other ranks is taken of a redistributed copy of its base. A write
/// to it reaches that copy. Formulas of derivatives write so (householder_product, conv_tbc): what
/// is written to a view taken there moves on into the base. To a view taken elsewhere the write is
/// refused, since another one, gathered before, would not see it.
namespace tessera::dtensor {
namespace {

void set_origin(const c10::IValue& result, const std::shared_ptr<const ViewOrigin>& origin) {
  if (result.isTensorList()) {
    for (const at::Tensor& tensor : result.toTensorVector()) set_origin(tensor, origin);
    return;
  }
  if (!result.isTensor() || sharded_meta(result.toTensor()) == nullptr) return;
  mark_copy_of_view(result.toTensor(), origin);
}

}  // namespace

void note_origin(const Decision& decision, const at::Tensor& base, const at::Tensor& local,
                 std::span<const c10::IValue> results) {
  std::shared_ptr<const ViewOrigin> origin;
  const bool shares = decision.moves && decision.operands[0].defined() && !decision.instead;
  if (!decision.moves) {
    origin = sharded_meta(base)->origin();
  } else if (shares && plain_is_internal()) {
    origin = std::make_shared<const ViewOrigin>(ViewOrigin{base, local, decision.operands[0]});
  }
  for (const auto& result : results) set_origin(result, origin);
}

void check_writable(const OpEntry& entry, const c10::IValue& value) {
  const ShardedMeta* meta = value.isTensor() ? sharded_meta(value.toTensor()) : nullptr;
  if (meta == nullptr || !meta->is_copy_of_view()) return;
  require(meta->origin() != nullptr, entry.name,
          " writes to a view of a sharded tensor that had to be gathered, so the write would be "
          "lost; redistribute the tensor before taking the view, or write to a slice of it");
}

void write_through(const OpEntry& entry, const at::Tensor& view) {
  const ShardedMeta* meta = sharded_meta(view);
  const comm::CallSite site({.op = entry.name, .implicit = true});
  while (meta != nullptr && meta->origin() != nullptr) {
    const ViewOrigin& origin = *meta->origin();
    meta = sharded_meta(origin.base);
    meta->local().copy_(
        exec::redistribute(origin.gathered, origin.as, meta->sharding(), {.may_alias = true}));
  }
}

}  // namespace tessera::dtensor
