#include "tessera/checkpoint/agree.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <filesystem>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "tessera/base/errors.h"
#include "tessera/base/iota_vector.h"
#include "tessera/observe/call_site.h"

namespace tessera::checkpoint {
namespace {

at::Tensor all_gather(comm::RankWorld& world, const at::Tensor& mine) {
  const auto group = world.group(iota_vector<int>(world.size()));
  at::Tensor all = at::empty({mine.numel() * world.size()}, mine.options());
  at::Tensor sent = mine;
  const comm::CallSite site({.op = "checkpoint"});
  group->backend(c10::DeviceType::CPU)._allgather_base(all, sent)->wait();
  return all;
}

/// The error with `prefix` before its text; one that is neither of this library nor of the file
/// system as it is.
[[noreturn]] void rethrow_with(const std::string& prefix, const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(prefix + error.what());
  } catch (const NotSupported& error) {
    throw NotSupported(prefix + error.what());
  } catch (const PeerError&) {  // names a rank already
    throw;
  } catch (const InternalError& error) {
    throw InternalError(prefix + error.what());
  } catch (const Error& error) {
    throw Error(prefix + error.what());
  } catch (const std::filesystem::filesystem_error& error) {
    throw Error(prefix + error.what());
  }
}

}  // namespace

std::vector<std::string> all_gather_text(comm::RankWorld& world, const std::string& text) {
  if (world.kind() == comm::RankWorld::Kind::fake) {
    throw NotSupported("a checkpoint in a fake world, whose ranks hold no data");
  }
  if (world.size() == 1) return {text};
  at::Tensor size = at::empty({1}, at::kLong);
  *size.mutable_data_ptr<int64_t>() = static_cast<int64_t>(text.size());
  const at::Tensor sizes = all_gather(world, size);
  const int64_t* const first = sizes.const_data_ptr<int64_t>();
  const int64_t longest = *std::max_element(first, first + world.size());
  if (longest == 0) return std::vector<std::string>(static_cast<size_t>(world.size()));
  at::Tensor padded = at::empty({longest}, at::kByte);
  std::memset(padded.mutable_data_ptr(), 0, static_cast<size_t>(longest));
  std::memcpy(padded.mutable_data_ptr(), text.data(), text.size());
  const at::Tensor all = all_gather(world, padded);
  std::vector<std::string> out;
  for (int rank = 0; rank < world.size(); ++rank) {
    out.emplace_back(reinterpret_cast<const char*>(all.const_data_ptr<uint8_t>()) + rank * longest,
                     static_cast<size_t>(first[rank]));
  }
  return out;
}

std::string error_text(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& e) {
    return *e.what() == '\0' ? "an error without a text" : e.what();
  } catch (...) {
    return "an exception that is not a std::exception";
  }
}

void on_all_ranks(comm::RankWorld& world, const std::function<void()>& body) {
  std::exception_ptr failure;
  std::string text;
  try {
    body();
  } catch (...) {  // callbacks of a program may throw anything
    failure = std::current_exception();
    text = error_text(failure);
  }
  std::vector<std::string> texts;
  try {
    texts = all_gather_text(world, text);
  } catch (const PeerError&) {  // says less about what went wrong than this rank's own error
    if (failure) std::rethrow_exception(failure);
    throw;
  }
  if (failure) {
    rethrow_with(world.size() > 1 ? join_text("rank ", world.rank(), ": ") : "", failure);
  }
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    if (!texts[rank].empty()) throw PeerError(join_text("rank ", rank, ": ", texts[rank]));
  }
}

}  // namespace tessera::checkpoint
