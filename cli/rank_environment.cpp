#include "cli/rank_environment.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <map>
#include <random>
#include <string_view>
#include <system_error>

namespace tessera::cli {
namespace {

constexpr std::string_view kOuterLauncher = "TORCHELASTIC_";

[[noreturn]] void fail_with(const char* what) {
  throw std::system_error(errno, std::generic_category(), what);
}

std::map<std::string, std::string> inherited() {
  std::map<std::string, std::string> variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const size_t equals = text.find('=');
    if (equals == std::string_view::npos || text.starts_with(kOuterLauncher)) continue;
    variables.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return variables;
}

}  // namespace

ReservedPort::ReservedPort() {
  socket_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (socket_ < 0) fail_with("launch: no socket to find a free port with");
  const int yes = 1;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_ANY);
  socklen_t size = sizeof(address);
  if (setsockopt(socket_, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)) != 0 ||
      bind(socket_, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    close(socket_);
    fail_with("launch: no free port found");
  }
  number_ = ntohs(address.sin_port);
}

ReservedPort::~ReservedPort() { close(socket_); }

std::string random_secret() {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::random_device random;  // the kernel's
  std::string secret;
  while (secret.size() < 32) secret += kDigits[random() % kDigits.size()];
  return secret;
}

bool limits_threads(const JobShape& shape) {
  return shape.ranks > 1 && std::getenv("OMP_NUM_THREADS") == nullptr;
}

std::vector<std::string> rank_environment(const JobShape& shape, int local_rank) {
  auto variables = inherited();
  const auto set = [&](const char* name, int value) { variables[name] = std::to_string(value); };
  set("RANK", shape.rank(local_rank));
  set("LOCAL_RANK", local_rank);
  set("WORLD_SIZE", shape.world_size());
  set("LOCAL_WORLD_SIZE", shape.ranks);
  set("NODE_RANK", shape.node_rank);
  set("GROUP_RANK", shape.node_rank);
  set("GROUP_WORLD_SIZE", shape.nodes);
  variables["ROLE_NAME"] = "default";  // torchrun's default for jobs with a single role
  set("ROLE_RANK", shape.rank(local_rank));
  set("ROLE_WORLD_SIZE", shape.world_size());
  variables["MASTER_ADDR"] = shape.master_addr;
  set("MASTER_PORT", shape.master_port);
  set("TESSERA_RESTARTS", shape.restarts);
  if (!shape.secret.empty()) variables["TESSERA_JOB_SECRET"] = shape.secret;
  if (limits_threads(shape)) set("OMP_NUM_THREADS", 1);

  std::vector<std::string> entries;
  for (const auto& [name, value] : variables) entries.push_back(name + "=" + value);
  return entries;
}

}  // namespace tessera::cli
