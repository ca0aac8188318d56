#pragma once

#include <map>
#include <string>
#include <vector>

/// Simulated hosts as network namespaces of this machine: each has its own interface, a cable to a
/// common switch, and a host name.
///
///   if (const auto why = Hosts::not_allowed(); !why.empty()) GTEST_SKIP() << why;
///   Hosts hosts(3);
///   const auto place = [&](int rank) { return hosts.at(rank); };
///   run_processes(kTrain, {.size = 3, .environment_of = place});
///
/// Needs root and the command `ip`. Everything is removed at the end.
namespace tessera::testing {

class Hosts {
 public:
  struct Options {
    /// Adds another interface, which comes first and is not connected, as on hosts with a second
    /// network.
    bool decoy = false;
  };

  /// Why hosts cannot be created here; "" if they can.
  static std::string not_allowed();

  explicit Hosts(int count) : Hosts(count, Options()) {}
  Hosts(int count, Options options);
  ~Hosts();
  Hosts(const Hosts&) = delete;
  Hosts& operator=(const Hosts&) = delete;

  static std::string name(int host);    ///< "host-a", "host-b", ...
  std::string address(int host) const;  ///< in the common network

  /// Environment of a rank on this host, with the store at the first host (RunOptions).
  std::map<std::string, std::string> at(int host) const;

  /// Disconnects the cable to the switch: the interface stays up, packets are lost.
  void unplug(int host);
  void plug(int host);
  /// Takes the interface itself down, with its routes.
  void take_down(int host);
  void take_up(int host);
  /// Limits the host's sending rate. False: the kernel does not support it.
  bool slow_down(int host, const std::string& rate);
  bool delay(int host, const std::string& time);

 private:
  std::string space(int host) const;
  std::string port(int host) const;

  std::string prefix_;
  int count_;
};

/// In a process started by run_processes: moves it to the host that Hosts::at names, if any.
void enter_host();

}  // namespace tessera::testing
