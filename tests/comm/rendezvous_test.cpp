// What launchers leave in the environment, row by row.
#include "tessera/comm/rendezvous.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <map>

#include "tessera/transport/network.h"
#include "tests/support/processes.h"

namespace tessera::comm {
namespace rendezvous_test {

using Variables = std::map<std::string, std::string>;

Rendezvous read(const Variables& variables) {
  return read_rendezvous([&](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    if (found == variables.end()) return std::nullopt;
    return found->second;
  });
}

std::string error_for(const Variables& variables) {
  return testing::error_of([&] { read(variables); });
}

TEST(Rendezvous, NothingSetIsOneRankWithoutAStore) {
  EXPECT_EQ(read({}), Rendezvous{});
  EXPECT_EQ(read({{"RANK", ""}, {"WORLD_SIZE", ""}}), Rendezvous{});
}

TEST(Rendezvous, PlainVariables) {
  const auto found = read({{"RANK", "3"},
                           {"WORLD_SIZE", "8"},
                           {"LOCAL_RANK", "1"},
                           {"MASTER_ADDR", "node7"},
                           {"MASTER_PORT", "29501"}});
  EXPECT_EQ(found.rank, 3);
  EXPECT_EQ(found.size, 8);
  EXPECT_EQ(found.local_rank, 1);
  EXPECT_EQ(found.host, "node7");
  EXPECT_EQ(found.port, 29501);
  EXPECT_FALSE(found.store_is_hosted);
}

TEST(Rendezvous, AJobIsWhatItsRanksHaveInCommon) {
  const Variables plain = {
      {"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "1"}};
  const auto job = [&](Variables more) {
    more.insert(plain.begin(), plain.end());
    return read(more).job;
  };
  EXPECT_EQ(job({}), "");
  EXPECT_EQ(job({{"TORCHELASTIC_RUN_ID", "17"}}), "TORCHELASTIC_RUN_ID=17");
  EXPECT_EQ(job({{"TORCHELASTIC_RUN_ID", "17"}, {"SLURM_JOB_ID", "3"}, {"SLURM_STEP_ID", "0"}}),
            "TORCHELASTIC_RUN_ID=17 SLURM_JOB_ID=3");
  // The parts of a heterogeneous job have numbers of their own.
  EXPECT_EQ(job({{"SLURM_JOB_ID", "3"}, {"SLURM_HET_SIZE", "2"}}), "");
  EXPECT_EQ(read({{"SLURM_PROCID", "1"},
                  {"SLURM_NTASKS", "2"},
                  {"SLURM_JOB_ID", "3"},
                  {"SLURM_STEP_ID", "4"},
                  {"SLURM_JOB_NODELIST", "n1"}})
                .job,
            "SLURM_JOB_ID=3 SLURM_STEP_ID=4");
  const std::string one = job({{"TESSERA_JOB_SECRET", "one"}});
  EXPECT_NE(one, job({{"TESSERA_JOB_SECRET", "two"}}));
  EXPECT_EQ(one.find("one"), std::string::npos);  // others may read it
}

TEST(Rendezvous, TorchrunsAgentHostsTheStore) {
  const auto found = read({{"RANK", "0"},
                           {"WORLD_SIZE", "2"},
                           {"MASTER_ADDR", "localhost"},
                           {"MASTER_PORT", "29500"},
                           {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                           {"TORCHELASTIC_RESTART_COUNT", "2"}});
  EXPECT_TRUE(found.store_is_hosted);
  EXPECT_EQ(found.attempt, "2");
}

TEST(Rendezvous, OneRankNeedsNoAddress) {
  EXPECT_EQ(read({{"RANK", "0"}, {"WORLD_SIZE", "1"}}).host, "");
}

TEST(Rendezvous, OpenMpiOnOneMachine) {
  const auto found = read({{"OMPI_COMM_WORLD_RANK", "1"},
                           {"OMPI_COMM_WORLD_SIZE", "4"},
                           {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                           {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}});
  EXPECT_EQ(found.rank, 1);
  EXPECT_EQ(found.size, 4);
  EXPECT_EQ(found.local_rank, 1);
  EXPECT_EQ(found.host, "127.0.0.1");
  EXPECT_EQ(found.port, 29500);
  EXPECT_EQ(found.source, "Open MPI");
}

TEST(Rendezvous, OpenMpiGoesBeforeTheSlurmJobAroundIt) {
  const auto found = read({{"OMPI_COMM_WORLD_RANK", "5"},
                           {"OMPI_COMM_WORLD_SIZE", "8"},
                           {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                           {"SLURM_PROCID", "0"},
                           {"SLURM_NTASKS", "2"},
                           {"SLURM_JOB_ID", "77"},
                           {"SLURM_JOB_NODELIST", "a[1-2]"}});
  EXPECT_EQ(found.rank, 5);
  EXPECT_EQ(found.host, "a1");
}

TEST(Rendezvous, Pmi) {
  const auto found = read({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MASTER_ADDR", "h"}});
  EXPECT_EQ(found.rank, 1);
  EXPECT_EQ(found.size, 2);
  EXPECT_EQ(found.host, "h");
  EXPECT_EQ(found.source, "PMI");
}

TEST(Rendezvous, Slurm) {
  const Variables job = {{"SLURM_PROCID", "3"},
                         {"SLURM_NTASKS", "8"},
                         {"SLURM_LOCALID", "1"},
                         {"SLURM_JOB_NODELIST", "gpu[03-05,7]"},
                         {"SLURM_JOB_ID", "4711"}};
  const auto found = read(job);
  EXPECT_EQ(found.rank, 3);
  EXPECT_EQ(found.size, 8);
  EXPECT_EQ(found.local_rank, 1);
  EXPECT_EQ(found.host, "gpu03");
  EXPECT_GE(found.port, 15000);
  EXPECT_LT(found.port, 29000);
  auto other = job;
  other["SLURM_PROCID"] = "4";
  EXPECT_EQ(read(other).port, found.port);
  other["SLURM_JOB_ID"] = "4712";
  EXPECT_NE(read(other).port, found.port);
  other["MASTER_PORT"] = "1234";
  EXPECT_EQ(read(other).port, 1234);
}

TEST(Rendezvous, ASlurmStepOfFewerTasksThanTheJob) {
  EXPECT_EQ(read({{"SLURM_PROCID", "1"},
                  {"SLURM_NTASKS", "8"},
                  {"SLURM_STEP_NUM_TASKS", "2"},
                  {"SLURM_NODELIST", "n1"}})
                .size,
            2);
}

TEST(Rendezvous, FirstHostOfANodeList) {
  const std::map<std::string, std::string> rows = {
      {"node1", "node1"},
      {"node1,node2", "node1"},
      {"node[03-05,7]", "node03"},
      {"node[7,03-05]", "node7"},
      {"login,node[1-3]", "login"},
      {"rack[1-2]n[05-08]", "rack1n05"},
      {"node[1-3].cluster.local,x", "node1.cluster.local"},
      {"a-b-c[001-100]", "a-b-c001"},
  };
  for (const auto& [list, host] : rows) EXPECT_EQ(first_host(list), host) << list;
  EXPECT_THROW(first_host("node[1-3"), std::exception);
  EXPECT_THROW(first_host("node[]"), std::exception);
}

TEST(Network, AnAddressThatOthersReachIsNotALoopback) {
  EXPECT_TRUE(is_loopback("localhost"));
  EXPECT_TRUE(is_loopback("127.0.1.1"));
  EXPECT_TRUE(is_loopback("::1"));
  EXPECT_FALSE(is_loopback("10.0.0.1"));
  EXPECT_FALSE(is_loopback("node127.0"));
  EXPECT_FALSE(is_loopback(address_towards("127.0.0.1", 29500)));  // "" where there is no network
  EXPECT_FALSE(is_loopback(address_towards("no.such.host.invalid", 29500)));
  EXPECT_EQ(machine_identity(), machine_identity());
}

/// As two containers of one machine that have the same host name.
TEST(Network, AnotherNetworkNamespaceIsAnotherMachine) {
  const std::string here = machine_identity();
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    if (unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0 && unshare(CLONE_NEWNET) != 0) _exit(2);
    const std::string there = machine_identity();
    _exit(write(ends[1], there.data(), there.size()) == ssize_t(there.size()) ? 0 : 1);
  }
  close(ends[1]);
  std::string there(here.size() + 64, '\0');
  there.resize(size_t(std::max<ssize_t>(::read(ends[0], there.data(), there.size()), 0)));
  close(ends[0]);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  if (WEXITSTATUS(status) == 2) GTEST_SKIP() << "no network namespaces here";
  ASSERT_EQ(status, 0);
  EXPECT_NE(there, "");
  EXPECT_NE(there, here);
}

TEST(Network, AStoreListensWhereItsHostIs) {
  const auto bound_at = [](const std::string& host) -> std::string {
    const auto fd = bind_where_host_is(host, 0);
    if (!fd) return "anywhere";
    sockaddr_in at{};
    socklen_t size = sizeof(at);
    EXPECT_EQ(getsockname(*fd, reinterpret_cast<sockaddr*>(&at), &size), 0);
    close(*fd);
    return inet_ntoa(at.sin_addr);
  };
  EXPECT_EQ(bound_at("127.0.0.1"), "127.0.0.1");
  EXPECT_EQ(bound_at("127.0.0.2"), "127.0.0.2");
  EXPECT_EQ(bound_at("localhost"), "127.0.0.1");
  EXPECT_EQ(bound_at("192.0.2.1"), "anywhere");  // an address of no machine
  EXPECT_EQ(bound_at("no.such.host.invalid"), "anywhere");
}

TEST(Rendezvous, BadValuesAreNamed) {
  const Variables good = {
      {"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "h"}, {"MASTER_PORT", "1"}};
  struct Row {
    std::string name;
    std::string value;
    std::string error;
  };
  const std::vector<Row> rows = {
      {"RANK", "one", "RANK is \"one\", expected a number"},
      {"RANK", "1x", "RANK is \"1x\", expected a number"},
      {"RANK", "99999999999", "RANK is \"99999999999\", expected a number"},
      {"RANK", "2", "RANK is 2, expected 0 to 1 (WORLD_SIZE is 2)"},
      {"RANK", "-1", "RANK is -1, expected 0 to 1 (WORLD_SIZE is 2)"},
      {"RANK", "", "WORLD_SIZE is set but RANK is not"},
      {"WORLD_SIZE", "", "RANK is set but WORLD_SIZE is not"},
      {"WORLD_SIZE", "0", "WORLD_SIZE is 0, expected at least 1"},
      {"MASTER_ADDR", "", "MASTER_ADDR is not set, but WORLD_SIZE is 2"},
      {"MASTER_PORT", "", "MASTER_PORT is not set, but MASTER_ADDR is"},
      {"MASTER_PORT", "http", "MASTER_PORT is \"http\", expected a number"},
      {"MASTER_PORT", "65536", "MASTER_PORT is 65536, expected 1 to 65535"},
  };
  for (const Row& row : rows) {
    auto variables = good;
    variables[row.name] = row.value;
    const auto error = error_for(variables);
    EXPECT_TRUE(error.starts_with("InvalidArgument: " + row.error)) << error;
  }
  EXPECT_TRUE(
      error_for({{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "2"}})
          .starts_with("InvalidArgument: MASTER_ADDR is not set, and Open MPI says 2 ranks"));
  EXPECT_TRUE(error_for({{"SLURM_PROCID", "0"}})
                  .starts_with("InvalidArgument: SLURM_PROCID is set but SLURM_NTASKS is not"));
}

}  // namespace rendezvous_test
}  // namespace tessera::comm
