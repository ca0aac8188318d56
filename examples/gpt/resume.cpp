#include "resume.h"

#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <iostream>

namespace gpt {
namespace {

using namespace tessera;

State state_of(Gpt& model, torch::optim::Optimizer& optimizer, const RunRecord& run) {
  std::vector<PlainValue> losses(run.losses.begin(), run.losses.end());
  State state = {{"losses", PlainValue::list(std::move(losses))}};
  add_module(state, "model.", *model);
  add_optimizer(state, "optim.", optimizer, *model);
  return state;
}

}  // namespace

std::string mesh_for_world(const std::string& mesh, int world_size) {
  const size_t star = mesh.find('*');
  if (star == std::string::npos) return mesh;
  const auto with = [&](int ranks) {
    return mesh.substr(0, star) + std::to_string(ranks) + mesh.substr(star + 1);
  };
  return with(world_size / DeviceMesh::parse(with(1)).size());
}

int64_t resume(Gpt& model, torch::optim::Optimizer& optimizer, const Settings& settings,
               RunRecord& run) {
  if (settings.checkpoints.empty()) return 0;
  const auto step = latest_step(settings.checkpoints);
  if (!step) return 0;
  State state = state_of(model, optimizer, run);
  load(state, step_path(settings.checkpoints, *step));
  take_optimizer(state, "optim.", optimizer, *model);
  const auto& losses = std::get<PlainValue>(state.at("losses"));
  for (const auto& loss : std::get<PlainValue::Sequence>(losses.data()).items) {
    run.losses.push_back(loss.real());
  }
  if (comm::current_world()->rank() == 0) {
    std::cout << "going on from the checkpoint of step " << *step << " on " << run.mesh
              << std::endl;
  }
  return *step;
}

void save_if_due(Gpt& model, torch::optim::Optimizer& optimizer, const Settings& settings,
                 const RunRecord& run) {
  const auto done = static_cast<int64_t>(run.losses.size());
  if (settings.checkpoints.empty() || done % settings.save_every != 0) return;
  save_step(state_of(model, optimizer, run), settings.checkpoints, done, {.keep = 2});
}

void die_if_asked(const Settings& settings, int64_t step) {
  const char* restarts = std::getenv("TESSERA_RESTARTS");
  const auto world = comm::current_world();
  const bool first_time = restarts == nullptr || std::atoi(restarts) == 0;
  if (step == settings.die_at && first_time && world->rank() == world->size() - 1) {
    ::kill(::getpid(), SIGKILL);
  }
}

}  // namespace gpt
