#pragma once

#include <filesystem>
#include <memory>

#include "tessera/base/api.h"
#include "tessera/checkpoint/save.h"

namespace tessera {

/// Saves in the background: the state is copied to memory of the CPU, and the program goes on while
/// a thread writes the copy.
///
///   AsyncSaver saver;
///   for (...) {
///     ...                                             // train
///     if (step % 100 == 0) saver.save(state, path);   // returns after the copy
///   }
///   saver.wait();                                     // before the end: throws what went wrong
///
/// The checkpoint is complete, and in its place, as with save(): written beside, synced, renamed.
/// The threads of the ranks synchronize through small files in the new directory and send no
/// messages, so the program's own collectives are not disturbed. An error of a save is thrown by
/// the next save() or wait(), on every rank; the death of a rank is found in seconds. Memory: one
/// copy of what this rank writes.
class TESSERA_API AsyncSaver {
 public:
  struct Options {
    /// What a save() does while the one before still runs: wait for it, or throw InvalidArgument.
    bool refuse_when_busy = false;
  };

  AsyncSaver() : AsyncSaver(Options{}) {}
  explicit AsyncSaver(Options options);
  /// Blocks until this rank's thread has ended. An error that no call has thrown is lost here: call
  /// wait() first.
  ~AsyncSaver();
  AsyncSaver(const AsyncSaver&) = delete;
  AsyncSaver& operator=(const AsyncSaver&) = delete;

  /// Every rank of the world calls it. Throws what the save before failed with. `on_stage` is
  /// called by the thread from SaveStage::written on, and for `committed` on rank 0 alone.
  void save(const State& state, const std::filesystem::path& directory,
            const SaveOptions& options = {});

  /// Blocks until the checkpoint is in place, on every rank; throws what went wrong, on every rank.
  void wait();

  /// Whether this rank's thread still writes.
  bool busy() const;

 private:
  struct Running;

  Options options_;
  std::unique_ptr<Running> running_;
};

}  // namespace tessera
