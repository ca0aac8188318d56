#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>

/// One canonical object per value, so that equality and hashing are pointer operations.
///
/// `Value` needs `size_t hash() const` and `==`. The table does not keep values alive: dropping the
/// last handle removes the entry, so memory does not grow with the number of shapes seen.
///
///   auto a = table.intern(Node{...});
///   auto b = table.intern(Node{...});   // equal value -> a.get() == b.get()
///
/// Cost: one lock and one hash of the value; meant for cold paths.
namespace tessera {

inline size_t hash_mix(size_t seed, size_t value) {
  return seed ^ (value + 0x9e3779b97f4a7c15ULL + (seed << 6) + (seed >> 2));
}

template <typename Value>
class InternTable {
 public:
  std::shared_ptr<const Value> intern(Value value) {
    const size_t hash = value.hash();
    std::shared_ptr<const Value> made;  // outlives the lock, which dropping a handle takes
    std::lock_guard lock(mutex_);
    auto [begin, end] = entries_.equal_range(hash);
    for (auto it = begin; it != end; ++it) {
      // A value in the table is not yet deleted, so it may be read. A handle whose count reached
      // zero cannot be revived; its deleter waits for our lock.
      if (!(*it->second.raw == value)) continue;
      if (auto alive = it->second.handle.lock()) return alive;
    }
    const auto* raw = new Value(std::move(value));
    made.reset(raw, [this, hash](const Value* v) { erase(hash, v); });
    entries_.emplace(hash, Entry{raw, made});
    return made;
  }

  size_t size() const {
    std::lock_guard lock(mutex_);
    return entries_.size();
  }

 private:
  struct Entry {
    const Value* raw;
    std::weak_ptr<const Value> handle;
  };

  void erase(size_t hash, const Value* value) {
    {
      std::lock_guard lock(mutex_);
      auto [begin, end] = entries_.equal_range(hash);
      for (auto it = begin; it != end; ++it) {
        if (it->second.raw == value) {
          entries_.erase(it);
          break;
        }
      }
    }
    delete value;  // outside the lock: a value may hold handles into this table
  }

  mutable std::mutex mutex_;
  std::unordered_multimap<size_t, Entry> entries_;
};

}  // namespace tessera
