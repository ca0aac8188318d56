#pragma once

#include <cstdint>
#include <string>

/// What the command line can say: every line is an option, `--layers 4`.
namespace gpt {

struct Settings {
  std::string mesh = "dp=1,tp=1";  ///< axes dp (shards the batch) and tp (shards the weights)
  std::string text = "examples/gpt/text.txt";

  int64_t layers = 2;
  int64_t width = 128;
  int64_t heads = 4;
  int64_t context = 64;  ///< bytes that the model sees

  int64_t batch = 32;  ///< rows a step, over all ranks
  int64_t steps = 300;
  int64_t warm_up = 30;
  double learning_rate = 4e-3;
  double weight_decay = 0.1;
  double clip = 1.0;
  int64_t seed = 7;

  int64_t every = 10;       ///< steps between two lines of progress
  int64_t sample = 300;     ///< bytes to write at the end
  std::string record;       ///< file for this run's figures
  std::string compare;      ///< the record of another run, whose losses must be the same
  double tolerance = 1e-5;  ///< of that comparison
  std::string report;       ///< file for the HTML report
  std::string checkpoints;  ///< folder for checkpoints; a run goes on from the last one there
  int64_t save_every = 50;  ///< steps between two checkpoints
  int64_t die_at = -1;      ///< the last rank kills itself before this step, unless restarted
};

/// Throws std::invalid_argument, which lists the options; --help prints them and exits.
Settings parse_settings(int argc, char** argv);

}  // namespace gpt
