#include "tessera/interp/program.h"

#include <algorithm>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "tessera/base/errors.h"
#include "tessera/interp/check_inputs.h"
#include "tessera/interp/compile.h"
#include "tessera/interp/execute.h"
#include "tessera/interp/weights.h"
#include "tessera/program/pytree.h"
#include "tessera/program/verify.h"

namespace tessera {

using c10::IValue;
using program::InputKind;
using program::OutputKind;

namespace {

bool is_user(OutputKind kind) {
  return kind == OutputKind::user_output || kind == OutputKind::loss_output;
}

const program::Value* value_of(const program::Graph& graph, const program::Argument& arg) {
  const program::Value* value = nullptr;
  program::each_value(arg, [&](program::ValueId id) { value = &graph.value(id); });
  return value;
}

/// Names of the user's inputs or outputs from the structure of the call; by number where the file
/// has none, or one that does not fit.
std::vector<std::string> port_names(std::vector<std::string> from_spec, size_t count,
                                    std::string_view prefix) {
  if (from_spec.size() == count) return from_spec;
  std::vector<std::string> out;
  for (size_t i = 0; i < count; ++i) out.push_back(join_text(prefix, i));
  return out;
}

/// Calls `make`. Every error names the file, and is one of the library's: what libtorch or a parser
/// throws comes from what the file says.
template <typename Make>
auto in_file(const std::string& path, const Make& make) {
  const auto text = [&](const char* what) {
    const bool named = std::string_view(what).find(path) != std::string_view::npos;
    return named ? std::string(what) : join_text(path, ": ", what);
  };
  try {
    return make();
  } catch (const NotSupported& error) {
    throw NotSupported(text(error.what()));
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(text(error.what()));
  } catch (const Error&) {
    throw;
  } catch (const c10::Error& error) {
    throw InvalidArgument(text(error.what_without_backtrace()));
  } catch (const std::exception& error) {
    throw InvalidArgument(text(error.what()));
  }
}

}  // namespace

std::string ProgramPort::to_text() const {
  return join_text(name, ": ", tensor ? tensor->to_text() : "a number");
}

class Program::Impl {
 public:
  Impl(program::ExportedProgram exported, std::shared_ptr<const program::Archive> archive,
       const ProgramOptions& options)
      : exported_(std::move(exported)), archive_(std::move(archive)), groups_(options.groups) {
    program::verify(exported_, join_text(path(), ": models/", options.model, ".json"));
    executor_.emplace(interp::compile(
        exported_,
        {.device = options.device,
         .group_name = [this](const std::string& name) { return registered_name(name); }},
        path()));
    load_weights(options.device);
    find_inputs(options.device);
    find_outputs();
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  const std::string& path() const { return archive_->path(); }

  Values run(Values inputs) {
    require(
        inputs.size() == inputs_.size(), path(), " takes ", inputs_.size(), " inputs",
        [&] { return names_text(); }, ", but ", inputs.size(), " were given");
    in_file(path(), [&] { check_->check(inputs); });
    for (size_t i = 0; i < inputs.size(); ++i) executor_->set_run_input(slots_[i], inputs[i]);
    Values all = executor_->run(path());
    in_file(path(), [&] { write_back(all, inputs); });
    Values out;
    out.reserve(outputs_.size());
    for (const size_t i : user_outputs_) out.push_back(std::move(all[i]));
    return out;
  }

  Values in_order(const NamedValues& inputs) const {
    Values out(inputs_.size());
    std::vector<bool> given(inputs_.size(), false);
    for (const auto& [name, value] : inputs) {
      const auto port = std::ranges::find(inputs_, name, &ProgramPort::name);
      require(port != inputs_.end(), path(), " has no input ", name, "; it has",
              [&] { return names_text(); });
      const auto i = static_cast<size_t>(port - inputs_.begin());
      require(!given[i], path(), ": input ", name, " is given twice");
      given[i] = true;
      out[i] = value;
    }
    for (size_t i = 0; i < given.size(); ++i) {
      require(given[i], path(), ": input ", inputs_[i], " is missing");
    }
    return out;
  }

  program::ExportedProgram exported_;
  std::shared_ptr<const program::Archive> archive_;
  std::map<std::string, std::shared_ptr<const comm::Group>> groups_;
  std::vector<ProgramPort> inputs_;
  std::vector<ProgramPort> outputs_;
  std::map<std::string, at::Tensor, std::less<>> tensors_;

 private:
  std::string names_text() const {
    std::string out;
    for (const auto& port : inputs_) out += (out.empty() ? " (" : ", ") + port.to_text();
    return out.empty() ? out : out + ")";
  }

  std::string registered_name(const std::string& name) const {
    const auto found = groups_.find(name);
    if (found != groups_.end()) return found->second->name();
    try {
      c10d::resolve_process_group(name);
    } catch (const c10::Error&) {
      throw InvalidArgument(join_text(
          "process group '", name,
          "' is not known here; give it in ProgramOptions::groups, or run the program as part "
          "of a sharded one"));
    }
    return name;
  }

  void load_weights(std::optional<c10::Device> device) {
    interp::Weights weights(archive_, device);
    for (size_t i = 0; i < exported_.signature.inputs.size(); ++i) {
      const auto& spec = exported_.signature.inputs[i];
      if (spec.kind == InputKind::token) {
        throw NotSupported(join_text(path(), ": input ", spec.name,
                                     " is a token that orders effects, which this library does not "
                                     "run; export the model without effects"));
      }
      if (spec.kind == InputKind::user_input || spec.kind == InputKind::constant_input) continue;
      const program::Payload& payload = *exported_.find_payload(spec.target);
      const bool in_weights =
          spec.kind == InputKind::parameter || (spec.kind == InputKind::buffer && spec.persistent);
      at::Tensor tensor = in_weights ? weights.weight(payload) : weights.constant(payload);
      executor_->set_input(i, tensor);
      tensors_.emplace(spec.target, std::move(tensor));
    }
  }

  void find_inputs(std::optional<c10::Device> device) {
    const auto& specs = exported_.signature.inputs;
    const auto is_argument = [](const program::InputSpec& spec) {
      return spec.kind == InputKind::user_input || spec.kind == InputKind::constant_input;
    };
    const auto count = static_cast<size_t>(std::ranges::count_if(specs, is_argument));
    const auto names = port_names(
        exported_.in_spec.empty() ? std::vector<std::string>()
                                  : program::input_names(program::parse_pytree(exported_.in_spec),
                                                         exported_.forward_arg_names),
        count, "arg");
    std::vector<interp::InputCheck::Input> checked;
    size_t argument = 0;
    for (size_t i = 0; i < specs.size(); ++i) {
      if (!is_argument(specs[i])) continue;
      const std::string& name = names[argument++];
      if (specs[i].kind == InputKind::constant_input || !specs[i].arg) continue;
      const program::Value* value = value_of(exported_.graph, *specs[i].arg);
      if (value == nullptr) continue;  // a number that was fixed at export
      inputs_.push_back({.name = name, .tensor = value->tensor});
      checked.push_back({.name = name, .value = value});
      slots_.push_back(i);
    }
    check_.emplace(exported_, checked, device);
  }

  void find_outputs() {
    const auto& specs = exported_.signature.outputs;
    for (size_t i = 0; i < specs.size(); ++i) {
      if (is_user(specs[i].kind)) user_outputs_.push_back(i);
    }
    const auto names =
        port_names(exported_.out_spec.empty()
                       ? std::vector<std::string>()
                       : program::output_names(program::parse_pytree(exported_.out_spec)),
                   user_outputs_.size(), "output");
    for (size_t i = 0; i < user_outputs_.size(); ++i) {
      const auto& arg = specs[user_outputs_[i]].arg;
      const program::Value* value = arg ? value_of(exported_.graph, *arg) : nullptr;
      outputs_.push_back(
          {.name = names[i], .tensor = value != nullptr ? value->tensor : std::nullopt});
    }
  }

  /// New values of buffers and of the caller's own tensors, which a functional program returns.
  void write_back(const Values& all, const Values& inputs) {
    const at::NoGradGuard no_grad;
    const auto& specs = exported_.signature.outputs;
    for (size_t i = 0; i < specs.size(); ++i) {
      const auto& spec = specs[i];
      if (spec.kind == OutputKind::buffer_mutation || spec.kind == OutputKind::parameter_mutation) {
        tensors_.find(spec.target)->second.copy_(all[i].toTensor());
      } else if (spec.kind == OutputKind::user_input_mutation) {
        for (size_t j = 0; j < slots_.size(); ++j) {
          const auto& input = exported_.signature.inputs[slots_[j]];
          if (value_of(exported_.graph, *input.arg)->name != spec.target) continue;
          inputs[j].toTensor().copy_(all[i].toTensor());
        }
      }
    }
  }

  std::optional<interp::Executor> executor_;
  std::optional<interp::InputCheck> check_;
  std::vector<size_t> slots_;         // by input: its place among the graph's inputs
  std::vector<size_t> user_outputs_;  // by output: its place among the graph's outputs
};

Program::Program(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Program::Program(Program&&) noexcept = default;
Program& Program::operator=(Program&&) noexcept = default;
Program::~Program() = default;

Program Program::load(const std::filesystem::path& path, const ProgramOptions& options) {
  auto archive = in_file(path.string(), [&] { return program::Archive::open(path); });
  auto exported = in_file(path.string(), [&] { return archive->read_program(options.model); });
  return from(std::move(exported), std::move(archive), options);
}

Program Program::from(program::ExportedProgram exported,
                      std::shared_ptr<const program::Archive> archive,
                      const ProgramOptions& options) {
  const std::string path = archive->path();
  return in_file(path, [&] {
    return Program(std::make_unique<Impl>(std::move(exported), std::move(archive), options));
  });
}

const std::vector<ProgramPort>& Program::inputs() const { return impl_->inputs_; }
const std::vector<ProgramPort>& Program::outputs() const { return impl_->outputs_; }
const program::ExportedProgram& Program::exported() const { return impl_->exported_; }
const std::string& Program::path() const { return impl_->path(); }

Program::Values Program::run(Values inputs) { return impl_->run(std::move(inputs)); }

Program::Values Program::in_order(const NamedValues& inputs) const {
  return impl_->in_order(inputs);
}

Program::NamedValues Program::run_named(const NamedValues& inputs) {
  Values results = impl_->run(impl_->in_order(inputs));
  NamedValues out;
  for (size_t i = 0; i < results.size(); ++i) {
    out.emplace_back(impl_->outputs_[i].name, std::move(results[i]));
  }
  return out;
}

at::Tensor Program::tensor(std::string_view name) const {
  const auto found = impl_->tensors_.find(name);
  require(found != impl_->tensors_.end(), path(), " has no parameter, buffer or constant ", name);
  return found->second;
}

}  // namespace tessera
