#include "bind/bind.h"

PYBIND11_MODULE(_C, m) {
  using namespace tessera::python;
  m.doc() = "The C++ part of tessera; use the names in `tessera`.";
  bind_errors(m);
  bind_mesh(m);
  bind_sharding(m);
  bind_plan(m);
  bind_rules(m);
  bind_comm(m);
  bind_ranks(m);
  bind_dtensor(m);
  bind_policy(m);
  bind_factories(m);
  bind_explain(m);
  bind_fsdp(m);
  bind_program(m);
  bind_partition(m);
  bind_checkpoint(m);
  bind_context_parallel(m);
  bind_expert_parallel(m);
  bind_parallel(m);
}
