#include "tessera/dtensor/dispatch/decide/decision.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <set>

#include "tessera/dtensor/tensor/layout.h"
#include "tessera/rules/rule.h"

namespace tessera::dtensor {
namespace {

/// Per op and thread. More distinct calls than this are not a steady state; clearing bounds the
/// memory.
constexpr size_t kMaxEntries = 4096;
/// Per thread, all ops together: about 20,000 decisions with a few tensors each.
constexpr size_t kMaxBytes = size_t{64} << 20;
/// Estimate for a sharding that only a decision references: its node and its cached properties.
constexpr size_t kShardingBytes = 800;

struct Entry {
  uint64_t hash = 0;
  std::vector<uint64_t> words;
  std::unique_ptr<Decision> decision;
  std::vector<Sharding> keep;

  /// Approximate. Shardings of a list are mostly shared with other tensors, or equal.
  size_t bytes() const {
    const size_t handles = decision->operands.size() + decision->results.size() + keep.size();
    return sizeof(Entry) + sizeof(Decision) + words.size() * sizeof(uint64_t) +
           handles * sizeof(Sharding) +
           decision->known.size() * (sizeof(KnownResult) + sizeof(ShardedImpl)) +
           std::min<size_t>(handles, 4) * kShardingBytes;
  }
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
    bytes_ += entries_.back().bytes();
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
    bytes_ = 0;
  }
  size_t size() const { return entries_.size(); }
  size_t bytes() const { return bytes_; }

  /// The questions that keys of this op answer.
  const rules::NumberQueries& questions() const { return questions_; }
  /// Adds questions. Entries whose keys lack their answers are dropped.
  void ask(const rules::NumberQueries& asked) {
    bool more = false;
    for (const auto& question : asked.list()) more = questions_.add(question) || more;
    if (more) clear();
  }

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
  size_t bytes_ = 0;
  rules::NumberQueries questions_;
};

struct ThreadCache;

struct Registry {
  std::mutex mutex;
  std::set<ThreadCache*> threads;
  DecisionStats of_ended_threads;
};

/// Incremented to make every thread drop its decisions.
constinit std::atomic<uint64_t> clear_generation{1};

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
  std::atomic<uint64_t> bytes{0};

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

  void clear() {
    by_op.clear();
    entries = 0;
    bytes = 0;
  }

  Table& table(uint32_t op) {
    // Both only grow, so an unchanged sum means that neither changed.
    if (const uint64_t now = clear_generation.load(std::memory_order_relaxed) + rules::generation();
        generation != now) [[unlikely]] {
      generation = now;
      clear();
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
  // Only this thread writes it; load and store avoid a locked instruction on the hot path.
  counter.store(counter.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
}

}  // namespace

KnownResult::KnownResult(const Sharding& sharding)
    : local_shape(as_ints(sharding.local_shape())),
      local_stride(as_ints(sharding.local_stride())),
      dtype(c10::scalarTypeToTypeMeta(static_cast<at::ScalarType>(sharding.dtype()))) {}

void DecisionKey::spill(uint64_t word) {
  spilled_.push_back(word);
  ++count_;
}

void DecisionKey::spill_number(uint64_t bits) {
  spilled_numbers_.push_back(bits);
  ++number_count_;
}

uint64_t DecisionKey::number(size_t i) const {
  if (i >= number_count_) return 0;  // the question came from a call with more numbers
  return i < kInlineNumbers ? inline_numbers_[i] : spilled_numbers_[i - kInlineNumbers];
}

void DecisionKey::answer(std::span<const rules::NumberQuery> questions) {
  if (unanswered_.count == 0) unanswered_ = {count_, hash_};
  count_ = unanswered_.count;
  hash_ = unanswered_.hash;
  spilled_.resize(count_ > kInline ? count_ - kInline : 0);
  for (const auto& question : questions) add(question.answer(number(question.number)));
}

const Decision* DecisionCache::find(uint32_t op, DecisionKey& key) {
  ThreadCache& cache = this_thread();
  const Table& table = cache.table(op);
  if (!table.questions().empty()) [[unlikely]] {
    key.answer(table.questions().list());
  }
  const Decision* found = table.find(key);
  if (found != nullptr) bump(cache.hits);
  return found;
}

const Decision* DecisionCache::put(uint32_t op, DecisionKey& key, Decided decided,
                                   std::vector<Sharding> keep) {
  ThreadCache& cache = this_thread();
  bump(cache.misses);
  if (cache.bytes >= kMaxBytes) cache.clear();
  Table& table = cache.table(op);
  const size_t entries = table.size();
  const size_t bytes = table.bytes();
  table.ask(decided.asked);
  key.answer(table.questions().list());
  const Decision* made = table.put(key, std::move(decided.decision), std::move(keep));
  cache.entries.store(cache.entries.load() + table.size() - entries);
  cache.bytes.store(cache.bytes.load() + table.bytes() - bytes);
  return made;
}

DecisionStats decision_stats() {
  std::lock_guard lock(registry().mutex);
  DecisionStats sum = registry().of_ended_threads;
  for (const ThreadCache* cache : registry().threads) {
    sum.hits += cache->hits;
    sum.misses += cache->misses;
    sum.entries += cache->entries;
    sum.bytes += cache->bytes;
  }
  return sum;
}

void clear_decisions() { clear_generation.fetch_add(1); }

}  // namespace tessera::dtensor
