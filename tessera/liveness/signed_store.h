#pragma once

#include <c10/util/intrusive_ptr.h>

#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

/// A c10d::Store whose values carry a message authentication code over key and value, which proves
/// that the writer knows the secret of the job. Reading a value without a valid code throws.
///
/// Not protected, because c10d's store has no such notion: any process that reaches its port can
/// read and list all entries, see which keys exist, change counters (add), and delete or overwrite
/// values. That can end a job with an error, but cannot make a rank accept a forged value. The
/// secret itself is never written.
namespace tessera::comm {

class SignedStore final : public c10d::Store {
 public:
  using StorePtr = c10::intrusive_ptr<c10d::Store>;

  SignedStore(StorePtr store, std::string secret);

  const StorePtr& inner() const { return store_; }

  StorePtr clone() override;
  using Store::set;
  void set(const std::string& key, const std::vector<uint8_t>& value) override;
  using Store::compareSet;
  std::vector<uint8_t> compareSet(const std::string& key, const std::vector<uint8_t>& expected,
                                  const std::vector<uint8_t>& desired) override;
  std::vector<uint8_t> get(const std::string& key) override;
  int64_t add(const std::string& key, int64_t value) override { return store_->add(key, value); }
  bool deleteKey(const std::string& key) override { return store_->deleteKey(key); }
  bool check(const std::vector<std::string>& keys) override { return store_->check(keys); }
  int64_t getNumKeys() override { return store_->getNumKeys(); }
  void wait(const std::vector<std::string>& keys) override { store_->wait(keys); }
  void wait(const std::vector<std::string>& keys,
            const std::chrono::milliseconds& timeout) override {
    store_->wait(keys, timeout);
  }
  /// Partial values cannot be signed.
  bool hasExtendedApi() const override { return false; }
  const std::chrono::milliseconds& getTimeout() const noexcept override {
    return store_->getTimeout();
  }
  void setTimeout(const std::chrono::milliseconds& timeout) override {
    store_->setTimeout(timeout);
  }

 private:
  std::vector<uint8_t> sign(const std::string& key, const std::vector<uint8_t>& value) const;
  std::vector<uint8_t> verified(const std::string& key, std::vector<uint8_t> value) const;

  StorePtr store_;
  std::string secret_;
};

}  // namespace tessera::comm
