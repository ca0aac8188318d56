#include "tessera/dtensor/decision.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <set>

#include "tessera/dtensor/layout.h"
#include "tessera/rules/rule.h"

namespace tessera::dtensor {
namespace {

/// Per op and thread. More shapes than this are no steady state; starting over bounds the memory.
constexpr size_t kMaxEntries = 4096;

struct Entry {
  uint64_t hash = 0;
  std::vector<uint64_t> words;
  std::unique_ptr<Decision> decision;
  std::vector<Sharding> keep;
};

/// Open addressing; a slot is an index into the entries, plus one.
class Table {
 public:
  const Decision* find(const DecisionKey& key) const {
    if (slots_.empty()) return nullptr;
    for (size_t at = key.hash() & mask_;; at = (at + 1) & mask_) {
      if (slots_[at] == 0) return nullptr;
      const Entry& entry = entries_[slots_[at] - 1];
      if (entry.hash == key.hash() && key.equals(entry.words)) return entry.decision.get();
    }
  }

  const Decision* put(const DecisionKey& key, std::unique_ptr<Decision> decision,
                      std::vector<Sharding> keep) {
    if (entries_.size() >= kMaxEntries) clear();
    entries_.push_back({key.hash(), key.to_vector(), std::move(decision), std::move(keep)});
    if (entries_.size() * 2 > slots_.size()) {
      grow();
    } else {
      place(entries_.size() - 1);
    }
    return entries_.back().decision.get();
  }

  void clear() {
    entries_.clear();
    slots_.clear();
  }
  size_t size() const { return entries_.size(); }

 private:
  void grow() {
    slots_.assign(std::max<size_t>(16, slots_.size() * 2), 0);
    mask_ = slots_.size() - 1;
    for (size_t i = 0; i < entries_.size(); ++i) place(i);
  }
  void place(size_t index) {
    size_t at = entries_[index].hash & mask_;
    while (slots_[at] != 0) at = (at + 1) & mask_;
    slots_[at] = static_cast<uint32_t>(index + 1);
  }

  std::vector<Entry> entries_;
  std::vector<uint32_t> slots_;
  size_t mask_ = 0;
};

struct ThreadCache;

struct Registry {
  std::mutex mutex;
  std::set<ThreadCache*> threads;
  DecisionStats of_ended_threads;
  std::atomic<uint64_t> generation{1};
};

Registry& registry() {
  static auto* instance = new Registry();  // outlives every thread
  return *instance;
}

struct ThreadCache {
  std::vector<Table> by_op;
  uint64_t generation = 0;
  std::atomic<uint64_t> hits{0};
  std::atomic<uint64_t> misses{0};
  std::atomic<uint64_t> entries{0};

  ThreadCache() {
    std::lock_guard lock(registry().mutex);
    registry().threads.insert(this);
  }
  ~ThreadCache() {
    std::lock_guard lock(registry().mutex);
    registry().threads.erase(this);
    registry().of_ended_threads.hits += hits;
    registry().of_ended_threads.misses += misses;
  }

  Table& table(uint32_t op) {
    // Both only grow, so a sum that did not change means that neither did.
    if (const uint64_t now =
            registry().generation.load(std::memory_order_relaxed) + rules::generation();
        generation != now) {
      generation = now;
      by_op.clear();
      entries = 0;
    }
    if (op >= by_op.size()) by_op.resize(op + 1);
    return by_op[op];
  }
};

ThreadCache& this_thread() {
  thread_local ThreadCache cache;
  return cache;
}

void bump(std::atomic<uint64_t>& counter) {
  // Only this thread writes it; a plain add keeps the hot path free of locked instructions.
  counter.store(counter.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
}

}  // namespace

KnownResult::KnownResult(const Sharding& sharding)
    : shape(as_ints(sharding.shape())),
      stride(as_ints(sharding.stride())),
      local_shape(as_ints(sharding.local_shape())),
      local_stride(as_ints(sharding.local_stride())),
      dtype(static_cast<at::ScalarType>(sharding.dtype())) {}

bool KnownResult::fits(const at::Tensor& local, bool is_view) const {
  if (!local.defined() || local.scalar_type() != dtype) return false;
  if (local.sizes() != local_shape) return false;
  if (is_view) return !local.is_conj() && !local.is_neg();
  return lies_as_said(local, local_stride);
}

void DecisionKey::spill(uint64_t word) {
  spilled_.push_back(word);
  ++count_;
}

const Decision* DecisionCache::find(uint32_t op, const DecisionKey& key) {
  ThreadCache& cache = this_thread();
  const Decision* found = cache.table(op).find(key);
  if (found != nullptr) bump(cache.hits);
  return found;
}

const Decision* DecisionCache::put(uint32_t op, const DecisionKey& key,
                                   std::unique_ptr<Decision> decision, std::vector<Sharding> keep) {
  ThreadCache& cache = this_thread();
  bump(cache.misses);
  Table& table = cache.table(op);
  const size_t before = table.size();
  const Decision* made = table.put(key, std::move(decision), std::move(keep));
  cache.entries.store(cache.entries.load() + table.size() - before);
  return made;
}

DecisionStats decision_stats() {
  std::lock_guard lock(registry().mutex);
  DecisionStats sum = registry().of_ended_threads;
  for (const ThreadCache* cache : registry().threads) {
    sum.hits += cache->hits;
    sum.misses += cache->misses;
    sum.entries += cache->entries;
  }
  return sum;
}

void clear_decisions() { registry().generation.fetch_add(1); }

}  // namespace tessera::dtensor
