#include "tessera/interp/execute.h"

#include <ATen/ScalarOps.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/List.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>

#include "tessera/base/errors.h"
#include "tessera/interp/symbolic_op.h"

namespace tessera::interp {
namespace {

using c10::IValue;

IValue converted(IValue value, Conversion conversion) {
  if (conversion == Conversion::to_float) return value.toScalar().toDouble();
  at::Tensor wrapped = at::scalar_to_tensor(value.toScalar());
  wrapped.unsafeGetTensorImpl()->set_wrapped_number(true);
  return wrapped;
}

}  // namespace

Executor::Executor(Code code)
    : code_(std::move(code)), values_(code_.values), keeps_(code_.values, false) {
  stack_.reserve(16);
}

void Executor::set_input(size_t i, IValue value) {
  const auto slot = code_.inputs[i];
  ensure(slot.has_value(), "an input of the graph that is not a value");
  keeps_[*slot] = true;
  values_[*slot] = std::move(value);
}

void Executor::set_run_input(size_t i, IValue value) {
  if (const auto slot = code_.inputs[i]) values_[*slot] = std::move(value);
}

IValue Executor::list_of(const ArgSource& arg) const {
  const auto item = [&](const ListItem& one) -> const IValue& {
    return one.value ? values_[*one.value] : one.constant;
  };
  switch (arg.kind) {
    case ArgSource::Kind::tensors: {
      c10::List<at::Tensor> out;
      out.reserve(arg.items.size());
      for (const auto& one : arg.items) out.push_back(item(one).toTensor());
      return out;
    }
    case ArgSource::Kind::optional_tensors: {
      c10::List<std::optional<at::Tensor>> out;
      out.reserve(arg.items.size());
      for (const auto& one : arg.items) out.push_back(item(one).toOptional<at::Tensor>());
      return out;
    }
    case ArgSource::Kind::floats: {
      c10::List<double> out;
      for (const auto& one : arg.items) out.push_back(item(one).toScalar().toDouble());
      return out;
    }
    case ArgSource::Kind::bools: {
      c10::List<bool> out;
      for (const auto& one : arg.items) out.push_back(item(one).toBool());
      return out;
    }
    default: {
      c10::List<int64_t> out;
      out.reserve(arg.items.size());
      for (const auto& one : arg.items) out.push_back(item(one).toInt());
      return out;
    }
  }
}

IValue Executor::read(const ArgSource& arg) {
  if (arg.kind == ArgSource::Kind::constant) return arg.constant;
  if (arg.kind != ArgSource::Kind::value) return list_of(arg);
  IValue value = arg.last_use ? std::move(values_[arg.value]) : values_[arg.value];
  return arg.conversion == Conversion::none ? value : converted(std::move(value), arg.conversion);
}

void Executor::store(const Instruction& instruction) {
  for (size_t i = 0; i < instruction.results.size(); ++i) {
    const ResultTarget& target = instruction.results[i];
    if (!target.is_list) {
      if (target.values[0] != kUnused) values_[target.values[0]] = std::move(stack_[i]);
      continue;
    }
    const auto list = stack_[i].toTensorList();
    require(list.size() == target.values.size(), "gave ", list.size(),
            " tensors, but the file names ", target.values.size());
    for (size_t j = 0; j < target.values.size(); ++j) {
      if (target.values[j] != kUnused) values_[target.values[j]] = list.get(j);
    }
  }
  stack_.clear();
}

void Executor::execute(const Instruction& instruction) {
  for (const auto& arg : instruction.args) stack_.push_back(read(arg));
  switch (instruction.kind) {
    case Instruction::Kind::op:
      instruction.op->callBoxed(&stack_);
      break;
    case Instruction::Kind::sym_size: {
      const int64_t size = stack_[0].toTensor().size(stack_[1].toInt());
      stack_.clear();
      stack_.emplace_back(size);
      break;
    }
    case Instruction::Kind::symbolic: {
      IValue result = evaluate(instruction.symbolic, stack_);
      stack_.clear();
      stack_.push_back(std::move(result));
      break;
    }
  }
  store(instruction);
  for (const ValueIndex value : instruction.frees) values_[value] = IValue();
}

void Executor::release() {
  stack_.clear();
  for (size_t i = 0; i < values_.size(); ++i) {
    if (!keeps_[i]) values_[i] = IValue();
  }
}

void Executor::rethrow(const Instruction& instruction, const std::string& document) const {
  const auto text = [&](const char* what) {
    return join_text(document, ": ", instruction.node, ": ", what);
  };
  try {
    throw;
  } catch (const PeerError& error) {
    throw PeerError(text(error.what()));
  } catch (const NotSupported& error) {
    throw NotSupported(text(error.what()));
  } catch (const InternalError& error) {
    throw InternalError(text(error.what()));
  } catch (const c10::OutOfMemoryError&) {
    throw;
  } catch (const c10::Error& error) {
    throw InvalidArgument(text(error.what_without_backtrace()));
  } catch (const std::exception& error) {
    throw InvalidArgument(text(error.what()));
  }
}

std::vector<IValue> Executor::run(const std::string& document) {
  const at::NoGradGuard no_grad;
  // Not below ADInplaceOrView: a view of a weight must still say that it requires a gradient,
  // because matmul chooses by it how it computes.
  const at::AutoDispatchBelowAutograd below_autograd;
  const Instruction* current = nullptr;
  try {
    for (const auto& instruction : code_.instructions) {
      current = &instruction;
      execute(instruction);
    }
    std::vector<IValue> outputs;
    outputs.reserve(code_.outputs.size());
    for (const auto& output : code_.outputs) outputs.push_back(read(output));
    release();
    return outputs;
  } catch (...) {
    release();
    if (current == nullptr) throw;
    rethrow(*current, document);
  }
}

}  // namespace tessera::interp
