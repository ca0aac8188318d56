#include "settings.h"

#include <map>
#include <sstream>
#include <stdexcept>
#include <variant>

namespace gpt {
namespace {

using Field = std::variant<std::string*, int64_t*, double*>;

std::map<std::string, Field> fields(Settings& s) {
  return {{"mesh", &s.mesh},
          {"text", &s.text},
          {"layers", &s.layers},
          {"width", &s.width},
          {"heads", &s.heads},
          {"context", &s.context},
          {"batch", &s.batch},
          {"steps", &s.steps},
          {"warm-up", &s.warm_up},
          {"learning-rate", &s.learning_rate},
          {"weight-decay", &s.weight_decay},
          {"clip", &s.clip},
          {"seed", &s.seed},
          {"every", &s.every},
          {"sample", &s.sample},
          {"record", &s.record},
          {"compare", &s.compare},
          {"tolerance", &s.tolerance},
          {"report", &s.report}};
}

[[noreturn]] void refuse(const std::string& why) {
  Settings defaults;
  std::ostringstream text;
  text << why << "\noptions and their defaults:";
  for (const auto& [name, field] : fields(defaults)) {
    text << "\n  --" << name << " ";
    std::visit([&](const auto* value) { text << *value; }, field);
  }
  throw std::invalid_argument(text.str());
}

}  // namespace

Settings parse_settings(int argc, char** argv) {
  Settings settings;
  const auto known = fields(settings);
  for (int i = 1; i < argc; i += 2) {
    const std::string word = argv[i];
    const auto found = known.find(word.starts_with("--") ? word.substr(2) : "");
    if (found == known.end()) refuse("no option " + word);
    if (i + 1 == argc) refuse(word + " lacks its value");
    std::istringstream text(argv[i + 1]);
    std::visit([&](auto* value) { text >> *value; }, found->second);
    if (!text || !text.eof()) refuse(word + " cannot be " + argv[i + 1]);
  }
  if (settings.width % settings.heads != 0) refuse("--width must be a multiple of --heads");
  if (settings.every < 1 || settings.context < 1) refuse("--every and --context are at least 1");
  return settings;
}

}  // namespace gpt
