#include "tests/support/hosts.h"

#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <system_error>

#include "tessera/base/text.h"

namespace tessera::testing {
namespace {

constexpr const char* kSpaceVariable = "TESSERA_TEST_NETWORK_NAMESPACE";
constexpr const char* kNameVariable = "TESSERA_TEST_HOST_NAME";
constexpr const char* kInterface = "job0";

bool succeeds(const std::string& command) {
  return std::system((command + " >/dev/null 2>&1").c_str()) == 0;
}

void run(const std::string& command) {
  if (!succeeds(command)) throw std::runtime_error("failed: " + command);
}

}  // namespace

std::string Hosts::not_allowed() {
  if (geteuid() != 0) return "network namespaces need root";
  if (!succeeds("command -v ip")) return "the command ip is missing (package iproute2)";
  const std::string trial = join_text("tessera-", getpid(), "-trial");
  const bool allowed =
      succeeds("ip netns add " + trial) &&
      succeeds(join_text("ip -n ", trial, " link add c0 type veth peer name c1")) &&
      succeeds(join_text("ip -n ", trial, " link add s0 type bridge"));
  succeeds("ip netns del " + trial);
  return allowed ? "" : "this kernel or container allows no network namespaces with veth pairs";
}

Hosts::Hosts(int count, Options options)
    : prefix_(join_text("tessera-", getpid(), "-")), count_(count) {
  const std::string hub = prefix_ + "switch";
  run("ip netns add " + hub);
  run(join_text("ip -n ", hub, " link add s0 type bridge"));
  run(join_text("ip -n ", hub, " link set s0 up"));
  for (int host = 0; host < count; ++host) {
    const std::string here = "ip -n " + space(host);
    run("ip netns add " + space(host));
    run(here + " link set lo up");
    if (options.decoy) {
      run(here + " link add decoy0 type veth peer name decoy1");
      run(join_text(here, " addr add 10.99.", host, ".1/24 dev decoy0"));
      run(here + " link set decoy0 up");
      run(here + " link set decoy1 up");
    }
    run(join_text(here, " link add ", kInterface, " type veth peer name ", port(host), " netns ",
                  hub));
    run(join_text(here, " addr add ", address(host), "/24 dev ", kInterface));
    run(join_text(here, " link set ", kInterface, " up"));
    run(join_text("ip -n ", hub, " link set ", port(host), " master s0 up"));
  }
}

Hosts::~Hosts() {
  for (int host = 0; host < count_; ++host) succeeds("ip netns del " + space(host));
  succeeds(join_text("ip netns del ", prefix_, "switch"));
}

std::string Hosts::name(int host) { return join_text("host-", static_cast<char>('a' + host)); }
std::string Hosts::address(int host) const { return join_text("10.98.0.", host + 1); }
std::string Hosts::space(int host) const { return prefix_ + name(host); }
std::string Hosts::port(int host) const { return join_text("port", host); }

std::map<std::string, std::string> Hosts::at(int host) const {
  return {{kSpaceVariable, space(host)}, {kNameVariable, name(host)}, {"MASTER_ADDR", address(0)}};
}

void Hosts::unplug(int host) {
  run(join_text("ip -n ", prefix_, "switch link set ", port(host), " down"));
}
void Hosts::plug(int host) {
  run(join_text("ip -n ", prefix_, "switch link set ", port(host), " up"));
}
void Hosts::take_down(int host) {
  run(join_text("ip -n ", space(host), " link set ", kInterface, " down"));
}
void Hosts::take_up(int host) {
  run(join_text("ip -n ", space(host), " link set ", kInterface, " up"));
}

bool Hosts::slow_down(int host, const std::string& rate) {
  return succeeds(join_text("tc -n ", space(host), " qdisc add dev ", kInterface, " root tbf rate ",
                            rate, " burst 64kbit latency 500ms"));
}

bool Hosts::delay(int host, const std::string& time) {
  return succeeds(
      join_text("tc -n ", space(host), " qdisc add dev ", kInterface, " root netem delay ", time));
}

void enter_host() {
  const char* space = std::getenv(kSpaceVariable);
  if (space == nullptr) return;
  const auto check = [](bool ok, const char* what) {
    if (!ok) throw std::system_error(errno, std::generic_category(), what);
  };
  const int fd = open((std::string("/run/netns/") + space).c_str(), O_RDONLY | O_CLOEXEC);
  check(fd >= 0, "a host's network namespace");
  check(setns(fd, CLONE_NEWNET) == 0, "setns");
  close(fd);
  const std::string name = std::getenv(kNameVariable);
  check(unshare(CLONE_NEWUTS) == 0, "unshare");
  check(sethostname(name.c_str(), name.size()) == 0, "sethostname");
}

}  // namespace tessera::testing
