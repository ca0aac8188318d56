#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "tests/support/simulation.h"

/// An in-memory store inside a Simulation, for tests of store-based protocols. Requests and replies
/// take time, are lost with their connection, or reach a host that is stopped or gone.
///
///   auto host = std::make_shared<StoreHost>(simulation, StoreHost::Faults{.most_delay_ms = 50});
///   auto store = c10::make_intrusive<MemoryStore>(host);    // a connection; clone() is another
namespace tessera::testing {

/// State shared by all connections.
class StoreHost {
 public:
  struct Faults {
    int most_delay_ms = 0;   ///< of each request, and again of its reply
    int lost_per_mille = 0;  ///< connections that break permanently, at a request or at its reply
  };
  /// up: responds. silent: requests never return (a stopped process, a cut cable). gone: they
  /// throw.
  enum class State { up, silent, gone };

  StoreHost(Simulation& simulation, Faults faults) : simulation(simulation), faults(faults) {}

  Simulation& simulation;
  Faults faults;
  State state = State::up;
  std::map<std::string, std::vector<uint8_t>> values;
  /// Called before each request is executed, with text like "set here/0": for tests that act at a
  /// specific request.
  std::function<void(std::string_view request)> before{};
};

class MemoryStore final : public c10d::Store {
 public:
  explicit MemoryStore(std::shared_ptr<StoreHost> host) : host_(std::move(host)) {}

  c10::intrusive_ptr<c10d::Store> clone() override;
  void set(const std::string& key, const std::vector<uint8_t>& value) override;
  std::vector<uint8_t> compareSet(const std::string& key, const std::vector<uint8_t>& expected,
                                  const std::vector<uint8_t>& desired) override;
  std::vector<uint8_t> get(const std::string& key) override;
  int64_t add(const std::string& key, int64_t value) override;
  bool deleteKey(const std::string& key) override;
  bool check(const std::vector<std::string>& keys) override;
  int64_t getNumKeys() override;
  void wait(const std::vector<std::string>& keys) override;
  void wait(const std::vector<std::string>& keys,
            const std::chrono::milliseconds& timeout) override;
  std::vector<std::vector<uint8_t>> multiGet(const std::vector<std::string>& keys) override;
  bool hasExtendedApi() const override { return true; }

 private:
  template <typename Act>
  auto request(const char* what, const std::string& key, Act act) -> decltype(act());
  void travel(const std::string& request);
  bool has(const std::vector<std::string>& keys) const;

  std::shared_ptr<StoreHost> host_;
  bool broken_ = false;
};

}  // namespace tessera::testing
