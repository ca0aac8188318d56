#include "settings.h"

#include <algorithm>
#include <cstdlib>
#include <iomanip>
#include <iostream>
#include <sstream>
#include <stdexcept>
#include <variant>
#include <vector>

namespace gpt {
namespace {

struct Option {
  std::string name;
  std::variant<std::string*, int64_t*, double*> value;
  const char* meaning;
};

std::vector<Option> options(Settings& s) {
  return {{"--mesh", &s.mesh, "axes dp (shards the batch) and tp (shards the weights)"},
          {"--text", &s.text, "what to learn"},
          {"--layers", &s.layers, "blocks"},
          {"--width", &s.width, "features of a byte"},
          {"--heads", &s.heads, "of attention"},
          {"--context", &s.context, "bytes that the model sees"},
          {"--batch", &s.batch, "rows a step, over all ranks"},
          {"--steps", &s.steps, "of training"},
          {"--warm-up", &s.warm_up, "steps until the full learning rate"},
          {"--learning-rate", &s.learning_rate, "after the warm-up; a tenth at the end"},
          {"--weight-decay", &s.weight_decay, "of matrices"},
          {"--clip", &s.clip, "the largest norm of all gradients"},
          {"--seed", &s.seed, "of values and batches"},
          {"--every", &s.every, "steps between two lines of progress"},
          {"--sample", &s.sample, "bytes to write at the end"},
          {"--record", &s.record, "file for this run's figures"},
          {"--compare", &s.compare, "the record of another run, whose losses must be the same"},
          {"--tolerance", &s.tolerance, "of that comparison"},
          {"--report", &s.report, "file for an HTML page about the run"},
          {"--checkpoints", &s.checkpoints, "folder to save to, and to go on from"},
          {"--save-every", &s.save_every, "steps between two checkpoints"},
          {"--die-at", &s.die_at, "step at which the last rank is killed, to show a restart"}};
}

std::string options_text() {
  Settings defaults;
  std::ostringstream text;
  text << "options and their defaults:\n" << std::left;
  for (const auto& [name, value, meaning] : options(defaults)) {
    std::ostringstream shown;
    std::visit([&](const auto* v) { shown << *v; }, value);
    text << "  " << std::setw(16) << name << " " << std::setw(22) << shown.str() << " " << meaning
         << "\n";
  }
  return text.str();
}

[[noreturn]] void refuse(const std::string& why) {
  throw std::invalid_argument(why + "\n" + options_text());
}

}  // namespace

Settings parse_settings(int argc, char** argv) {
  Settings settings;
  const auto known = options(settings);
  for (int i = 1; i < argc; i += 2) {
    const std::string word = argv[i];
    if (word == "--help") {
      std::cout << "Trains a small GPT on bytes; " << options_text();
      std::exit(0);
    }
    const auto found =
        std::find_if(known.begin(), known.end(), [&](const auto& o) { return o.name == word; });
    if (found == known.end()) refuse("no option " + word);
    if (i + 1 == argc) refuse(word + " lacks its value");
    std::istringstream text(argv[i + 1]);
    std::visit([&](auto* value) { text >> *value; }, found->value);
    if (!text || !text.eof()) refuse(word + " cannot be " + argv[i + 1]);
  }
  if (settings.heads < 1 || settings.width % settings.heads != 0) {
    refuse("--width must be a multiple of --heads");
  }
  if (settings.every < 1 || settings.context < 1) refuse("--every and --context are at least 1");
  if (settings.save_every < 1) refuse("--save-every is at least 1");
  return settings;
}

}  // namespace gpt
