#pragma once

#include <map>
#include <string>
#include <vector>

/// Hosts of a test, as network namespaces of this machine: each has an interface of its own, a
/// cable to a common switch, and a host name.
///
///   if (const auto why = Hosts::not_allowed(); !why.empty()) GTEST_SKIP() << why;
///   Hosts hosts(3);
///   const auto place = [&](int rank) { return hosts.at(rank); };
///   run_processes(kTrain, {.size = 3, .environment_of = place});
///
/// Needs root and the command `ip`. All is removed at the end.
namespace tessera::testing {

class Hosts {
 public:
  struct Options {
    /// Another interface, which comes first and leads nowhere, as hosts with a second network have.
    bool decoy = false;
  };

  /// Why there can be none here; "" if there can.
  static std::string not_allowed();

  explicit Hosts(int count) : Hosts(count, Options()) {}
  Hosts(int count, Options options);
  ~Hosts();
  Hosts(const Hosts&) = delete;
  Hosts& operator=(const Hosts&) = delete;

  static std::string name(int host);    ///< "host-a", "host-b", ...
  std::string address(int host) const;  ///< in the common network

  /// Variables of a rank that runs there, with the store at the first host (RunOptions).
  std::map<std::string, std::string> at(int host) const;

  /// The cable to the switch: the interface stays up, what it sends is lost.
  void unplug(int host);
  void plug(int host);
  /// The interface itself, with its routes.
  void take_down(int host);
  void take_up(int host);
  /// Limits what the host sends. False: the kernel cannot.
  bool slow_down(int host, const std::string& rate);
  bool delay(int host, const std::string& time);

 private:
  std::string space(int host) const;
  std::string port(int host) const;

  std::string prefix_;
  int count_;
};

/// In a process that run_processes started: moves it to the host that Hosts::at names, if any.
void enter_host();

}  // namespace tessera::testing
