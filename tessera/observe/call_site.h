#pragma once

#include <string_view>

/// Who asks for the communication that follows on this thread: a scope guard that the library sets
/// around its own collectives, so that recorders, traces and checks can say more than "all_gather".
///
///   CallSite site({.op = "aten::mm", .axis = "tp", .implicit = true});
///   group->backend(device).allreduce(...);          // recorded as "implicit in aten::mm, on tp"
///
/// Guards nest. A field left empty is taken from the guard around it, and `implicit` holds for
/// everything inside. Costs a few stores; keeps views, so the text must outlive the guard.
namespace tessera::comm {

struct CallSiteFields {
  std::string_view op = {};    ///< "aten::mm"; empty everywhere: "user"
  std::string_view axis = {};  ///< the mesh axis or axes, "tp" or "dp+tp"
  /// Compared between the ranks in checked mode, word for word; the sharding, for instance.
  std::string_view note = {};
  bool implicit = false;  ///< communication that the caller did not write; see set_implicit_check
};

class CallSite {
 public:
  explicit CallSite(const CallSiteFields& fields);
  ~CallSite();
  CallSite(const CallSite&) = delete;
  CallSite& operator=(const CallSite&) = delete;

  /// What holds on this thread now; empty fields if nobody set one.
  static const CallSiteFields& current();

 private:
  CallSiteFields fields_;
  const CallSite* outer_;
};

/// Sets what is called before each collective inside an implicit site, on any thread; it throws to
/// refuse the collective. Here the policy about implicit communication holds for all of it,
/// whichever code it comes from.
using ImplicitCheck = void (*)(const CallSiteFields& site);
void set_implicit_check(ImplicitCheck check);
/// Calls the check if the calling thread is in an implicit site.
void check_implicit();

}  // namespace tessera::comm
