#pragma once

#include "tessera/observe/call_site.h"
#include "tessera/observe/recorder.h"
#include "tessera/observe/tap.h"
#include "tests/observe/scripted_backend.h"

namespace tessera::comm {

/// A scripted backend with a tap on it.
struct Tapped {
  explicit Tapped(GroupInfo group = {{0, 1}, 0, "g", "w"}, int rank = 0)
      : observers(rank), outer(tap(inner, std::move(group), observers)) {}

  Observers observers;
  c10::intrusive_ptr<ScriptedBackend> inner = c10::make_intrusive<ScriptedBackend>();
  c10::intrusive_ptr<c10d::Backend> outer;

  void all_reduce(const CallSiteFields& site = {}) {
    const CallSite here(site);
    std::vector<at::Tensor> t = {at::ones({2, 3})};
    outer->allreduce(t)->wait();
  }
  void all_gather(const CallSiteFields& site = {}) {
    const CallSite here(site);
    auto in = at::ones({2, 4});
    auto out = at::ones({4, 4});
    outer->_allgather_base(out, in)->wait();
  }
};

}  // namespace tessera::comm
