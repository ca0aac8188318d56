#pragma once

#include <tessera/tessera.h>
#include <torch/optim/optimizer.h>

#include "model.h"
#include "run_record.h"
#include "settings.h"

/// A run that survives its ranks: what it goes on from, and the end that shows it.
namespace gpt {

/// "dp=*,tp=2" with as many ranks on the starred axis as the world has: a restart may have fewer.
std::string mesh_for_world(const std::string& mesh, int world_size);

/// Loads the last checkpoint of the folder, if there is one, into the model, the optimizer and the
/// record's losses. The step to go on with.
int64_t resume(Gpt& model, torch::optim::Optimizer& optimizer, const Settings& settings,
               RunRecord& run);

/// After every save_every-th step: saves, and keeps the last two.
void save_if_due(Gpt& model, torch::optim::Optimizer& optimizer, const Settings& settings,
                 const RunRecord& run);

/// Kills the last rank of a job that was not restarted, as a machine that fails would.
void die_if_asked(const Settings& settings, int64_t step);

}  // namespace gpt
