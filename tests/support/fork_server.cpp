#include "tests/support/fork_server.h"

#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <stdexcept>
#include <thread>

namespace tessera::testing {
namespace {

constexpr size_t kLongestRequest = 128 * 1024;

int requests = -1;  // the caller's end of the link to the server

void require(bool ok, const std::string& what) {
  if (!ok) throw std::runtime_error(what + ": " + std::strerror(errno));
}

/// Room for one file descriptor beside a message.
union Attachment {
  cmsghdr header;
  std::array<char, CMSG_SPACE(sizeof(int))> bytes;
};

msghdr message_of(iovec& part, Attachment& attachment) {
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = attachment.bytes.data();
  message.msg_controllen = attachment.bytes.size();
  return message;
}

void send_request(const std::string& text, int file) {
  iovec part = {const_cast<char*>(text.data()), text.size()};
  Attachment attachment{};
  msghdr message = message_of(part, attachment);
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &file, sizeof(int));
  require(sendmsg(requests, &message, MSG_NOSIGNAL) == static_cast<ssize_t>(text.size()),
          "cannot ask the fork server");
}

/// The length of the request, 0 at the end of requests.
size_t receive_request(int link, std::string& text, int& file) {
  text.resize(kLongestRequest);
  iovec part = {text.data(), text.size()};
  Attachment attachment{};
  msghdr message = message_of(part, attachment);
  const ssize_t length = recvmsg(link, &message, 0);
  if (length <= 0) return 0;
  text.resize(static_cast<size_t>(length));
  std::memcpy(&file, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(int));
  return text.size();
}

/// Lines of `text`, each ended by a zero, for the rest of the process's life.
void set_environment(const std::string& text) {
  clearenv();
  const char* end = text.data() + text.size();
  for (const char* entry = text.data(); entry < end; entry += std::strlen(entry) + 1) {
    putenv(strdup(entry));
  }
}

/// In the server. The process in the middle ends at once, so that its child becomes one of the
/// caller, which is the nearest subreaper.
void start(int link, const std::string& text, int output, const std::function<int()>& body) {
  const pid_t middle = fork();
  if (middle == 0) {
    const pid_t parent = getpid();
    const pid_t child = fork();
    if (child != 0) {
      const bool sent = send(link, &child, sizeof(child), MSG_NOSIGNAL) == sizeof(child);
      _exit(sent ? 0 : 1);
    }
    while (getppid() == parent) std::this_thread::sleep_for(std::chrono::microseconds(100));
    close(link);
    dup2(output, STDOUT_FILENO);
    dup2(output, STDERR_FILENO);
    close(output);
    set_environment(text);
    std::exit(body());
  }
  close(output);
  waitpid(middle, nullptr, 0);
  const char done = 1;
  if (send(link, &done, sizeof(done), MSG_NOSIGNAL) != sizeof(done)) _exit(1);
}

[[noreturn]] void serve(int link, const std::function<int()>& body) {
  std::string text;
  int output = -1;
  while (receive_request(link, text, output) > 0) start(link, text, output, body);
  _exit(0);
}

}  // namespace

void begin_fork_server(const std::function<int()>& body) {
  std::array<int, 2> ends{};
  require(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) == 0, "socketpair");
  const pid_t server = fork();
  require(server >= 0, "fork");
  if (server == 0) {
    close(ends[0]);
    serve(ends[1], body);
  }
  close(ends[1]);
  requests = ends[0];
}

pid_t fork_from_server(const std::vector<std::string>& environment, int output) {
  std::string text;
  for (const std::string& entry : environment) text += entry + '\0';
  if (text.size() > kLongestRequest) throw std::runtime_error("the environment is too long");
  static std::mutex one_request;  // answers come in the order of requests
  const std::lock_guard lock(one_request);
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  send_request(text, output);
  pid_t child = -1;
  char done = 0;
  const bool answered = recv(requests, &child, sizeof(child), 0) == sizeof(child) && child > 0 &&
                        recv(requests, &done, sizeof(done), 0) == sizeof(done);
  prctl(PR_SET_CHILD_SUBREAPER, 0);
  require(answered, "the fork server did not start a process");
  return child;
}

}  // namespace tessera::testing
