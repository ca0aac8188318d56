#pragma once

#include <string_view>

/// The origin of the communication that follows on this thread: a scope guard that the library sets
/// around its collectives, so that recorders, traces and checks can report more than "all_gather".
///
///   CallSite site({.op = "aten::mm", .axis = "tp", .implicit = true});
///   group->backend(device).allreduce(...);          // recorded as "implicit in aten::mm, on tp"
///
/// Guards nest. An empty field is inherited from the enclosing guard, and `implicit` applies to
/// everything inside. Costs a few stores; holds views, so the text must outlive the guard.
namespace tessera::comm {

struct CallSiteFields {
  std::string_view op = {};    ///< "aten::mm"; empty everywhere: "user"
  std::string_view axis = {};  ///< the mesh axis or axes, "tp" or "dp+tp"
  /// Compared between ranks in checked mode, as text; for example the sharding.
  std::string_view note = {};
  bool implicit = false;  ///< not requested by the caller; see set_implicit_check
};

class CallSite {
 public:
  explicit CallSite(const CallSiteFields& fields);
  ~CallSite();
  CallSite(const CallSite&) = delete;
  CallSite& operator=(const CallSite&) = delete;

  /// The current fields of this thread; empty if no guard is active.
  static const CallSiteFields& current();

 private:
  CallSiteFields fields_;
  const CallSite* outer_;
};

/// Sets the function called before each collective inside an implicit site, on any thread; it
/// throws to reject the collective. This enforces the policy on implicit communication for all code
/// paths.
using ImplicitCheck = void (*)(const CallSiteFields& site);
void set_implicit_check(ImplicitCheck check);
/// Calls the check if the calling thread is in an implicit site.
void check_implicit();

}  // namespace tessera::comm
