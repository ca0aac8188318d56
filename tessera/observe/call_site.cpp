#include "tessera/observe/call_site.h"

#include <atomic>

namespace tessera::comm {
namespace {

thread_local const CallSite* innermost = nullptr;

constinit std::atomic<ImplicitCheck> implicit_check{nullptr};

CallSiteFields merged(CallSiteFields fields, const CallSiteFields& outer) {
  if (fields.op.empty()) fields.op = outer.op;
  if (fields.axis.empty()) fields.axis = outer.axis;
  if (fields.note.empty()) fields.note = outer.note;
  fields.implicit = fields.implicit || outer.implicit;
  return fields;
}

}  // namespace

CallSite::CallSite(const CallSiteFields& fields)
    : fields_(merged(fields, current())), outer_(innermost) {
  innermost = this;
}

CallSite::~CallSite() { innermost = outer_; }

const CallSiteFields& CallSite::current() {
  static constexpr CallSiteFields kNone;
  return innermost == nullptr ? kNone : innermost->fields_;
}

void set_implicit_check(ImplicitCheck check) { implicit_check.store(check); }

void check_implicit() {
  const CallSiteFields& site = CallSite::current();
  if (!site.implicit) return;
  if (const ImplicitCheck check = implicit_check.load(std::memory_order_relaxed)) check(site);
}

}  // namespace tessera::comm
