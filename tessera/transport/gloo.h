#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <functional>
#include <string>

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

/// libtorch's Gloo, made safe against calls that do not match.
///
/// What bare Gloo does when ranks call different things (measured, libtorch 2.13, three processes):
///
///   another op, another root, a call left out     waits until the timeout, then an exception
///   a peer dies                                    an exception on the others at once
///   more bytes than the receiver expects           std::terminate in a thread of Gloo's: the
///                                                  process dies, nothing can be caught
///   fewer bytes; another dtype of the same size;   nothing: wrong numbers on some ranks,
///   another reduction                              and the program goes on
///
/// The backend made here marks every message with what the call is (op, dtype, element count, root,
/// reduction, sequence number; for send, recv and all_to_all the size of the piece), in the tag
/// that both sides must agree on anyway. So the last two cases become the first. Costs nothing on
/// the wire. Together with a tap (tap.h), which looks after five seconds whether the peers wait in
/// the same call, a mismatch is an exception that names it.
namespace tessera::comm {

struct GlooOptions {
  c10::intrusive_ptr<c10d::Store> store;  ///< of this group alone (a PrefixStore)
  int index = 0;
  int size = 1;
  std::chrono::milliseconds timeout{0};
  /// The address to listen on; empty: what this machine's name resolves to. GLOO_SOCKET_IFNAME
  /// goes before it.
  std::string address;
  /// False: libtorch's own Gloo as it is, for comparison.
  bool matched = true;
  std::string secret{};  ///< of the job, for the links that are our own (link_handshake.h)
  /// Called about twice a second while those connect; may throw.
  std::function<void()> look_around = [] {};
};

/// A backend that can say to its peers that no message of this rank will come any more, so that
/// those which still wait for one do not wait for it until the end of the process.
class EndsSending {
 public:
  virtual ~EndsSending() = default;
  /// Nothing happens while a call is under way. Calls of Gloo's own do not notice.
  virtual void end_sending() noexcept = 0;
};

/// Connects to the other ranks of the group.
c10::intrusive_ptr<c10d::Backend> make_gloo_backend(const GlooOptions& options);

}  // namespace tessera::comm
