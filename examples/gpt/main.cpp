// Trains a small GPT on bytes of text, its batch and its state sharded over the mesh axis dp and
// its layers over tp, and compares with the same run on one rank.
//
//   build/bin/tessera launch -n 4 build/examples/gpt --mesh dp=2,tp=2 --report report.html
#include <tessera/comm/failure.h>
#include <tessera/tessera.h>
#include <torch/optim/adamw.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <numbers>

#include "distribute.h"
#include "memory.h"
#include "progress.h"
#include "report.h"
#include "resume.h"
#include "run_record.h"
#include "sample.h"
#include "text.h"

namespace {

using namespace gpt;
using namespace tessera;

/// Up in a straight line, then down to a tenth along a cosine.
double learning_rate(const Settings& s, int64_t step) {
  if (step < s.warm_up) {
    return s.learning_rate * static_cast<double>(step + 1) / static_cast<double>(s.warm_up);
  }
  const double done = static_cast<double>(step - s.warm_up) /
                      static_cast<double>(std::max<int64_t>(1, s.steps - s.warm_up));
  return s.learning_rate * (0.55 + 0.45 * std::cos(std::numbers::pi * done));
}

/// Matrices decay; biases and norms do not.
torch::optim::AdamW make_optimizer(Gpt& model, const Settings& s) {
  std::vector<at::Tensor> matrices, vectors;
  for (const auto& parameter : model->parameters()) {
    (parameter.dim() > 1 ? matrices : vectors).push_back(parameter);
  }
  const auto options = [&](double decay) {
    return std::make_unique<torch::optim::AdamWOptions>(
        torch::optim::AdamWOptions(s.learning_rate).betas({0.9, 0.95}).weight_decay(decay));
  };
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(matrices, options(s.weight_decay));
  groups.emplace_back(vectors, options(0));
  return torch::optim::AdamW(std::move(groups));
}

/// Each rank of dp has the loss of its own rows.
double mean_over_dp(const at::Tensor& loss, const DeviceMesh& mesh) {
  return full_tensor(from_local(loss, mesh["dp"], {Partial(ReduceOp::avg)})).item<double>();
}

RunRecord train(Gpt& model, const Settings& s, const DeviceMesh& mesh, Progress& progress) {
  const Text text(s.text, s.context, s.batch, s.seed);
  auto optimizer = make_optimizer(model, s);
  RunRecord run;
  run.mesh = s.mesh;
  comm::Recorder recorder(*comm::current_world());
  for (int64_t step = resume(model, optimizer, s, run); step < s.steps; ++step) {
    die_if_asked(s, step);
    const Stopwatch watch;
    const Batch batch = text.batch(step, mesh);
    optimizer.zero_grad();
    const at::Tensor loss = model->loss(batch.inputs, batch.targets);
    loss.backward();
    clip_grad_norm_(model->parameters(), s.clip);
    for (auto& group : optimizer.param_groups()) group.options().set_lr(learning_rate(s, step));
    optimizer.step();

    run.losses.push_back(mean_over_dp(full_tensor(loss.detach()), mesh));
    run.seconds += watch.seconds();
    run.tokens += s.batch * s.context;
    run.add(recorder.events());
    recorder.clear();
    progress.show(run);
    save_if_due(model, optimizer, s, run);
    recorder.clear();
  }
  run.memory = memory_by_owner(*model, optimizer, mesh);
  return run;
}

/// Whether the losses are those of the run to compare with; says so.
bool same_losses(const Settings& s, const RunRecord& run, const RunRecord& other) {
  const double difference = largest_difference(run, other);
  const bool same = difference <= s.tolerance;
  std::cout << "losses on " << run.mesh << " and on " << other.mesh << " differ by at most "
            << difference << (same ? "" : ", which is too much") << std::endl;
  return same;
}

int run_rank(Settings s) {
  s.mesh = mesh_for_world(s.mesh, comm::current_world()->size());
  const DeviceMesh mesh = init_device_mesh(s.mesh);
  const bool speaks = comm::current_world()->rank() == 0;
  Gpt model(s);
  distribute(model, s, mesh);
  Progress progress(s, speaks);
  const RunRecord run = train(model, s, mesh, progress);
  const std::string sample = write_sample(model, s, mesh);
  if (!speaks) return 0;

  std::cout << "a sample:\n" << sample << std::endl;
  if (!s.record.empty()) run.save(s.record);
  std::vector<RunRecord> runs = {run};
  if (!s.compare.empty()) runs.push_back(RunRecord::load(s.compare));
  if (!s.report.empty()) write_report(s.report, runs, sample);
  return runs.size() == 1 || same_losses(s, run, runs[1]) ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run_rank(parse_settings(argc, argv));
  } catch (const std::exception& error) {
    std::cerr << "gpt: " << error.what() << std::endl;
    tessera::comm::report_failure(error.what());
    return 1;
  }
}
