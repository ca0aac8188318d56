#pragma once

/// Passes this process's standard input on to a child.
///
/// The child does not inherit it: a rank is in a process group of its own, and a terminal stops
/// processes of other groups that read from it.
namespace tessera::cli {

class StdinRelay {
 public:
  StdinRelay();
  ~StdinRelay();
  StdinRelay(const StdinRelay&) = delete;
  StdinRelay& operator=(const StdinRelay&) = delete;

  int read_end() const { return read_; }  ///< what the child takes as its stdin

  /// Call it once the child runs: closes the read end here and starts a thread that copies until
  /// the input ends or the child has closed its side. The thread ends with the process at the
  /// latest.
  void start();

 private:
  int read_ = -1;
  int write_ = -1;
};

}  // namespace tessera::cli
