#include "tessera/comm/job_check.h"

#include <c10/util/Exception.h>
#include <unistd.h>

#include <charconv>
#include <vector>

#include "tessera/base/errors.h"
#include "tessera/liveness/poll.h"
#include "tessera/liveness/store_text.h"
#include "tessera/transport/network.h"

namespace tessera::comm {
namespace {

using std::chrono::milliseconds;

constexpr const char* kJob = "job";
/// How long another process may take to claim the rank of one that does not match.
constexpr milliseconds kPlaceTakenWithin(5000);

std::string rank_key(int rank) { return join_text("rank/", rank); }

/// Identifies a process, so that it recognizes its own entry, and names it in messages: "process 12
/// on node3".
std::string process_text() {
  return join_text("process ", getpid(), " on ", host_name(), "\n", machine_identity());
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

std::string name_of(const std::string& job) {
  return job.empty() ? std::string("without a name") : join_text("\"", job, "\"");
}

struct Job {
  int size = 0;
  std::string name;
};

Job parse_job(const std::string& text) {
  Job job;
  const char* end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, job.size);
  require(error == std::errc{} && at != end && *at == ' ',
          "the store holds another program's entry where the job's identity is expected: \"", text,
          "\"");
  job.name = std::string(at + 1, end);
  return job;
}

/// The job entry of rank 0: rank 0 writes its own, unless another rank 0 was first.
Job job_at(c10d::Store& store, const JobMember& mine) {
  const std::string word = join_text(mine.size, " ", mine.job);
  if (mine.rank == 0) return parse_job(text_of(store.compareSet(kJob, {}, bytes_of(word))));
  if (!poll_until(mine.timeout, [&] { return store.check({kJob}); })) {
    throw PeerError(join_text("rank ", mine.rank, ": the start of the world at ", mine.where,
                              ": rank 0 did not arrive within ", mine.timeout.count(), " ms"));
  }
  return parse_job(text_of(store.get(kJob)));
}

}  // namespace

void check_job(c10d::Store& store, const JobMember& mine,
               const std::function<void(const std::string& why)>& post) {
  const auto refuse = [&](const std::string& why, const std::vector<std::string>& places) {
    const auto grace = std::min(kPlaceTakenWithin, mine.timeout / 2);
    if (!poll_until(grace, [&] { return store.check(places); })) post(why);
    throw InvalidArgument(why);
  };
  const Job job = job_at(store, mine);
  if (job.name != mine.job) {
    throw InvalidArgument(join_text(
        "rank ", mine.rank, " found the store of another job at ", mine.where, ": that job is ",
        name_of(job.name), ", this one ", name_of(mine.job),
        "; give each job a MASTER_PORT of its own, and all ranks of a job the same environment"));
  }
  if (job.size != mine.size) {
    const std::string why =
        join_text("WORLD_SIZE is ", mine.size, " on rank ", mine.rank, " but ", job.size,
                  " on rank 0 (at ", mine.where, "); all ranks of a job need the same");
    if (mine.rank >= job.size) throw InvalidArgument(why);  // a rank that the job does not have
    refuse(why, {rank_key(mine.rank)});
  }
  const std::string me = process_text();
  const std::string taken = text_of(store.compareSet(rank_key(mine.rank), {}, bytes_of(me)));
  if (taken == me) return;
  std::vector<std::string> all;
  for (int rank = 0; rank < mine.size; ++rank) all.push_back(rank_key(rank));
  refuse(join_text("RANK=", mine.rank, " was given to two processes of the job at ", mine.where,
                   ": ", first_line(taken), " and ", first_line(me)),
         all);
}

}  // namespace tessera::comm
