#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <functional>
#include <string>

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

/// libtorch's Gloo backend, made safe against mismatched calls.
///
/// What plain Gloo does when ranks make different calls (measured, libtorch 2.13, three processes):
///
///   another op, another root, a missing call       blocks until the timeout, then an exception
///   a peer dies                                    an exception on the others immediately
///   more bytes than the receiver expects           std::terminate on one of Gloo's threads: the
///                                                  process dies, nothing can be caught
///   fewer bytes; another dtype of the same size;   nothing: wrong numbers on some ranks,
///   another reduction                              and the program continues
///
/// This backend encodes what the call is (op, dtype, element count, root, reduction, sequence
/// number; for send, recv and all_to_all the size of the piece) in the message tag, on which both
/// sides must agree anyway. So the last two cases become the first, at no cost on the wire. With a
/// tap (observe/tap.h), which checks after five seconds whether the peers wait in the same call, a
/// mismatch becomes an exception that describes it.
namespace tessera::comm {

struct GlooOptions {
  c10::intrusive_ptr<c10d::Store> store;  ///< of this group only (a PrefixStore)
  int index = 0;
  int size = 1;
  std::chrono::milliseconds timeout{0};
  /// The address to listen on; empty: what this machine's name resolves to. GLOO_SOCKET_IFNAME
  /// takes precedence.
  std::string address;
  /// False: libtorch's Gloo unmodified, for comparison.
  bool matched = true;
  std::string secret{};  ///< of the job, for our own connections (link_handshake.h)
  /// Called about twice a second while these connect; may throw.
  std::function<void()> look_around = [] {};
};

/// A backend that can notify its peers that this rank sends no more messages, so that pending
/// receives fail instead of blocking until the process exits.
class EndsSending {
 public:
  virtual ~EndsSending() = default;
  /// No effect while a call is in progress. Gloo's own calls do not notice it.
  virtual void end_sending() noexcept = 0;
};

/// Connects to the other ranks of the group.
c10::intrusive_ptr<c10d::Backend> make_gloo_backend(const GlooOptions& options);

}  // namespace tessera::comm
