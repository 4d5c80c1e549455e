// Reads the launcher's variables for this process, through a function, so that tests need
// no setenv. Every fault is a ConfigError of one line: variable, value, rule.
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
  // This process's number among those of its host, and how many there are; not every
  // launcher sets them.
  std::optional<int> local_rank;
  std::optional<int> local_world_size;
  // The number of its host, if the launcher counts hosts.
  std::optional<int> node;
  // The launcher hosts the store: every rank, rank 0 too, is a client.
  bool agent_store = false;
  int restart_count = 0;
  // The launcher: "torchrun" (brigade run sets the same variables), "Open MPI", "PMI",
  // "SLURM", "options", or "none".
  std::string source = "none";

  bool single_host() const { return local_world_size && *local_world_size == world_size; }
};

// This process's rank and hosts. A rank or world size given here wins over the variables;
// if they contradict, the variables' local ranks and store are ignored too.
Environment read_environment(const Lookup& lookup, std::optional<int> rank = std::nullopt,
                             std::optional<int> world_size = std::nullopt);

struct Master {
  std::string host;
  int port = 0;
};

// The number that the launcher gave this process's host (GROUP_RANK, SLURM_NODEID); none if
// it does not count hosts.
std::optional<int> read_node(const Lookup& lookup);

// The address of rank 0, or of the launcher's store. Without MASTER_ADDR it is loopback on
// one host, else SLURM's first node; without MASTER_PORT the port is derived from the job's
// id.
Master read_master(const Lookup& lookup, const Environment& environment);

// BRIGADE_TIMEOUT, in seconds, fractions allowed.
std::optional<std::chrono::milliseconds> read_timeout(const Lookup& lookup);

// The first host of a SLURM node list: "node[003-006,010],other" gives "node003".
// `variable` is named in the error.
std::string first_host(const std::string& variable, const std::string& node_list);

// How many tasks node number `node` runs, from SLURM's "4(x2),3"; none if it is not known.
std::optional<int> tasks_on_node(const std::string& variable, const std::string& tasks,
                                 std::optional<int> node);

// The whole of `value` as a number from `least` to `most`; otherwise throws a ConfigError
// that names `what`.
int parse_int(const std::string& what, const std::string& value, int least, int most);

}  // namespace brigade::group
