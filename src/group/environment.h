// What the variables of a launcher say about this process. Pure: reads through a function,
// so that tests need no setenv. Every fault is a ConfigError of one line: variable, value,
// what is expected.
#pragma once
#include <chrono>
#include <functional>
#include <optional>
#include <string>

namespace brigade::group {

// The value of a variable; none when it is not set. An empty value is a value.
using Lookup = std::function<std::optional<std::string>(const std::string& name)>;

Lookup process_environment();

struct Environment {
  int rank = 0;
  int world_size = 1;
  // This process's place among those of its host, and their number; not every launcher
  // tells.
  std::optional<int> local_rank;
  std::optional<int> local_world_size;
  // The number of its host, where the launcher counts them.
  std::optional<int> node;
  // The launcher hosts the store: every rank, rank 0 too, is a client.
  bool agent_store = false;
  int restart_count = 0;
  // Who started us: "torchrun" (brigade run speaks its language), "Open MPI", "PMI",
  // "SLURM", "options", or "none".
  std::string source = "none";

  bool single_host() const { return local_world_size && *local_world_size == world_size; }
};

// Who this process is. A rank or world size given here wins over the variables; where the
// two contradict each other, the variables' local ranks and store are not believed either.
Environment read_environment(const Lookup& lookup, std::optional<int> rank = std::nullopt,
                             std::optional<int> world_size = std::nullopt);

struct Master {
  std::string host;
  int port = 0;
};

// The number that the launcher gave this process's host (GROUP_RANK, SLURM_NODEID); none
// when it does not count hosts.
std::optional<int> read_node(const Lookup& lookup);

// Where rank 0, or the launcher's store, is. Without MASTER_ADDR: loopback on one host,
// else SLURM's first node. Without MASTER_PORT: a port derived from the job's id.
Master read_master(const Lookup& lookup, const Environment& environment);

// BRIGADE_TIMEOUT, in seconds, fractions allowed.
std::optional<std::chrono::milliseconds> read_timeout(const Lookup& lookup);

// The first host of a SLURM node list: "node[003-006,010],other" gives "node003".
// `variable` is named in the error.
std::string first_host(const std::string& variable, const std::string& node_list);

// How many tasks node number `node` runs, from SLURM's "4(x2),3"; none when it cannot be
// told.
std::optional<int> tasks_on_node(const std::string& variable, const std::string& tasks,
                                 std::optional<int> node);

// The whole of `value` as a number from `least` to `most`, or a ConfigError that names
// `what`.
int parse_int(const std::string& what, const std::string& value, int least, int most);

}  // namespace brigade::group
