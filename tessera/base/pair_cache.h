#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>

#include "tessera/base/intern.h"

/// A bounded cache from two interned values to something expensive computed from them, shared by
/// all threads. `Handle` is a handle to an interned value with `id()`, its address. An entry holds
/// both handles, so an address in a key identifies the value as long as the entry exists.
///
/// A look-up takes a reader lock and hashes two addresses. A full cache is cleared, so memory does
/// not grow with the number of shapes seen. Entries made under another `version` are stale.
namespace tessera {

template <typename Handle, typename Value>
class PairCache {
 public:
  explicit PairCache(size_t max_entries) : max_entries_(max_entries) {}

  /// The entry, or the result of `make()`, which runs outside the lock and may run twice in a race.
  template <typename Make>
  std::shared_ptr<const Value> get(const Handle& a, const Handle& b, uint64_t version,
                                   const Make& make) {
    const Key key{a.id(), b.id()};
    {
      std::shared_lock lock(mutex_);
      if (version_ == version) {
        if (const auto it = entries_.find(key); it != entries_.end()) {
          hits_.fetch_add(1, std::memory_order_relaxed);
          return it->second.value;
        }
      }
    }
    misses_.fetch_add(1, std::memory_order_relaxed);
    std::shared_ptr<const Value> made = make();
    Entries old;  // freed outside the lock: values may hold the last handle to others
    std::unique_lock lock(mutex_);
    if (version_ != version || entries_.size() >= max_entries_) {
      old.swap(entries_);
      version_ = version;
    }
    std::shared_ptr<const Value> kept =
        entries_.try_emplace(key, Entry{a, b, std::move(made)}).first->second.value;
    lock.unlock();
    return kept;
  }

  /// Drops the entries for which `stale(a, b)` is true.
  template <typename Stale>
  void erase_if(const Stale& stale) {
    Entries old;
    std::unique_lock lock(mutex_);
    for (auto it = entries_.begin(); it != entries_.end();) {
      auto here = it++;
      if (stale(here->second.a, here->second.b)) old.insert(entries_.extract(here));
    }
    lock.unlock();
  }

  void clear() {
    Entries old;
    std::unique_lock lock(mutex_);
    old.swap(entries_);
    lock.unlock();
  }

  size_t size() const {
    std::shared_lock lock(mutex_);
    return entries_.size();
  }
  uint64_t hits() const { return hits_.load(std::memory_order_relaxed); }
  uint64_t misses() const { return misses_.load(std::memory_order_relaxed); }

 private:
  struct Key {
    const void* a;
    const void* b;
    bool operator==(const Key&) const = default;
  };
  struct KeyHash {
    size_t operator()(const Key& key) const {
      return hash_mix(std::hash<const void*>()(key.a), std::hash<const void*>()(key.b));
    }
  };
  struct Entry {
    Handle a;
    Handle b;
    std::shared_ptr<const Value> value;
  };
  using Entries = std::unordered_map<Key, Entry, KeyHash>;

  size_t max_entries_;
  mutable std::shared_mutex mutex_;
  Entries entries_;
  uint64_t version_ = 0;
  std::atomic<uint64_t> hits_{0};
  std::atomic<uint64_t> misses_{0};
};

}  // namespace tessera
