#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

/// A c10d::Store whose calls all have a deadline. The liveness room, Gloo and NCCL access the store
/// of a world of processes only through it.
///
/// A TCPStore blocks without limit while its host is stopped or unreachable, and one thread that
/// waits for a key blocks all others from the connection. Here a thread of the connection makes the
/// calls, and the caller waits for it up to a limit. Waiting for a key polls it, so no call
/// occupies the connection for longer than one round trip.
///
///   auto store = c10::make_intrusive<BoundedStore>(tcp_store, 30s);
///   store->get("key");                            // throws c10::DistStoreError after 30 s
///   store->until(deadline)->get("key");           // the same connection, by `deadline`
///
/// In a child forked from the process that created it, every call throws immediately: the
/// connection belongs to the parent. Cost: two thread switches per call in addition to the round
/// trip.
namespace tessera::comm {

class BoundedStore final : public c10d::Store {
 public:
  using Clock = std::chrono::steady_clock;
  using StorePtr = c10::intrusive_ptr<c10d::Store>;

  BoundedStore(StorePtr store, std::chrono::milliseconds timeout);
  ~BoundedStore() override;

  /// Uses the same connection: calls end by `deadline`, and within the timeout.
  c10::intrusive_ptr<BoundedStore> until(Clock::time_point deadline) const;

  /// A separate connection, established within the limit.
  StorePtr clone() override;
  /// The same without limits, for a thread that blocks on purpose and is never joined.
  StorePtr unbounded_clone();

  /// Closes the connection, which frees a server's port, for example. Every later call throws.
  void close();

  using Store::set;
  void set(const std::string& key, const std::vector<uint8_t>& value) override;
  using Store::compareSet;
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
  void append(const std::string& key, const std::vector<uint8_t>& value) override;
  std::vector<std::vector<uint8_t>> multiGet(const std::vector<std::string>& keys) override;
  void multiSet(const std::vector<std::string>& keys,
                const std::vector<std::vector<uint8_t>>& values) override;
  bool hasExtendedApi() const override;

 private:
  struct Connection;
  BoundedStore(std::shared_ptr<Connection> connection, std::chrono::milliseconds timeout,
               Clock::time_point deadline);
  friend class c10::intrusive_ptr<BoundedStore>;

  /// Runs `call(store)` on the connection's thread; `what` is for the error message.
  template <typename Call>
  auto run(std::string what, Call call) const;
  Clock::time_point limit(std::chrono::milliseconds timeout) const;

  std::shared_ptr<Connection> connection_;
  Clock::time_point deadline_;
};

/// Opens a connection by `connect` within `timeout`; nullptr if it takes longer. `connect`
/// continues to run in that case, so it must own what it uses; its exceptions propagate to the
/// caller.
BoundedStore::StorePtr open_within(std::chrono::milliseconds timeout,
                                   std::function<BoundedStore::StorePtr()> connect);

}  // namespace tessera::comm
