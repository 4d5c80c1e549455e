#include "group/environment.h"

#include <charconv>
#include <climits>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "brigade/error.h"

namespace brigade::group {
namespace {

[[noreturn]] void refuse(const std::string& what, const std::string& value,
                         const std::string& expected) {
  throw ConfigError(what + "='" + value + "': expected " + expected);
}

// The names of variables of one kind of launcher; in each list the first one that is set
// counts.
struct Dialect {
  const char* source;
  std::vector<const char*> rank, world_size, local_rank, local_world_size;
};

// In order of precedence: inside a SLURM allocation, another launcher's workers have
// SLURM's variables too, but these describe the launcher's own processes.
const std::vector<Dialect>& dialects() {
  static const std::vector<Dialect> all{
      {"torchrun", {"RANK"}, {"WORLD_SIZE"}, {"LOCAL_RANK"}, {"LOCAL_WORLD_SIZE"}},
      {"Open MPI",
       {"OMPI_COMM_WORLD_RANK"},
       {"OMPI_COMM_WORLD_SIZE"},
       {"OMPI_COMM_WORLD_LOCAL_RANK"},
       {"OMPI_COMM_WORLD_LOCAL_SIZE"}},
      {"PMI",
       {"PMI_RANK"},
       {"PMI_SIZE"},
       {"MPI_LOCALRANKID", "PMI_LOCAL_RANK"},
       {"MPI_LOCALNRANKS", "PMI_LOCAL_SIZE"}},
      {"SLURM", {"SLURM_PROCID"}, {"SLURM_NTASKS", "SLURM_NPROCS"}, {"SLURM_LOCALID"}, {}},
  };
  return all;
}

struct Variable {
  std::string name;
  std::string value;
};

std::optional<Variable> first_set(const Lookup& lookup,
                                  const std::vector<const char*>& names) {
  for (const char* name : names) {
    if (auto value = lookup(name)) return Variable{name, *value};
  }
  return std::nullopt;
}

std::optional<int> read_int(const Lookup& lookup, const std::vector<const char*>& names,
                            int least, int most = INT_MAX) {
  auto variable = first_set(lookup, names);
  if (!variable) return std::nullopt;
  return parse_int(variable->name, variable->value, least, most);
}

bool speaks(const Lookup& lookup, const Dialect& dialect) {
  return first_set(lookup, dialect.rank) || first_set(lookup, dialect.world_size);
}

// SLURM_NTASKS alone is set in every batch script; only srun sets a process's rank.
const Dialect* find_dialect(const Lookup& lookup) {
  for (const Dialect& dialect : dialects()) {
    bool slurm = dialect.source == std::string("SLURM");
    if (slurm ? first_set(lookup, dialect.rank).has_value() : speaks(lookup, dialect)) {
      return &dialect;
    }
  }
  return nullptr;
}

bool read_flag(const Lookup& lookup, const std::string& name) {
  auto value = lookup(name);
  if (!value) return false;
  if (*value == "True" || *value == "true" || *value == "1") return true;
  if (*value == "False" || *value == "false" || *value == "0") return false;
  refuse(name, *value, "True or False");
}

std::optional<int> slurm_local_world_size(const Lookup& lookup) {
  auto node = read_int(lookup, {"SLURM_NODEID"}, 0);
  for (const char* name : {"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"}) {
    if (auto value = lookup(name)) return tasks_on_node(name, *value, node);
  }
  return read_int(lookup, {"SLURM_NTASKS_PER_NODE"}, 1);
}

int required(const Lookup& lookup, const std::vector<const char*>& names,
             const std::vector<const char*>& other, int least,
             const std::string& expected) {
  if (auto value = read_int(lookup, names, least)) return *value;
  auto set = first_set(lookup, other);
  throw ConfigError(std::string(names.front()) + " is not set" +
                    (set ? ", but " + set->name + "='" + set->value + "' is" : "") +
                    ": expected " + expected);
}

void check_places(const Environment& found) {
  auto text = [](int value) { return std::to_string(value); };
  const std::string source = found.source == "none" ? "" : " (from " + found.source + ")";
  if (found.rank >= found.world_size) {
    throw ConfigError("rank " + text(found.rank) + " of a world of " +
                      text(found.world_size) + source + ": expected a rank from 0 to " +
                      text(found.world_size - 1));
  }
  if (!found.local_world_size) return;
  if (*found.local_world_size > found.world_size) {
    throw ConfigError(text(*found.local_world_size) +
                      " ranks on this host, but a world of " + text(found.world_size) +
                      source + ": expected no more local ranks than ranks");
  }
  if (found.local_rank && *found.local_rank >= *found.local_world_size) {
    throw ConfigError("local rank " + text(*found.local_rank) + " of " +
                      text(*found.local_world_size) + " on this host" + source +
                      ": expected a local rank from 0 to " +
                      text(*found.local_world_size - 1));
  }
}

Environment from_dialect(const Lookup& lookup, const Dialect& dialect,
                         std::optional<int> rank, std::optional<int> world_size) {
  Environment found;
  found.source = dialect.source;
  found.rank = rank ? *rank
                    : required(lookup, dialect.rank, dialect.world_size, 0,
                               "this process's place, from 0 on");
  found.world_size = world_size ? *world_size
                                : required(lookup, dialect.world_size, dialect.rank, 1,
                                           "the number of processes");
  found.local_rank = read_int(lookup, dialect.local_rank, 0);
  found.local_world_size = read_int(lookup, dialect.local_world_size, 1);
  if (found.source == "SLURM") found.local_world_size = slurm_local_world_size(lookup);
  found.node = read_node(lookup);
  found.agent_store = read_flag(lookup, "TORCHELASTIC_USE_AGENT_STORE");
  return found;
}

// Whether a given rank and world size equal the variables'.
bool agree(const Lookup& lookup, const Dialect& dialect, int rank, int world_size) {
  auto same = [&](const std::vector<const char*>& names, int given) {
    auto variable = first_set(lookup, names);
    return variable && variable->value == std::to_string(given);
  };
  return same(dialect.rank, rank) && same(dialect.world_size, world_size);
}

// A port below Linux's ephemeral range, equal for all ranks of a job and different for
// neighbouring job ids.
int derived_port(const std::string& job) {
  std::uint32_t hash = 2166136261u;
  for (unsigned char c : job) hash = (hash ^ c) * 16777619u;
  return 15000 + static_cast<int>(hash % 16384u);
}

int read_master_port(const Lookup& lookup) {
  if (auto port = read_int(lookup, {"MASTER_PORT"}, 1, 65535)) return *port;
  if (auto job = first_set(lookup, {"SLURM_JOB_ID", "PMIX_NAMESPACE",
                                    "OMPI_MCA_ess_base_jobid", "PMI_JOBID"})) {
    auto step = lookup("SLURM_STEP_ID");
    return derived_port(job->value + (step ? "." + *step : ""));
  }
  throw ConfigError(
      "MASTER_PORT is not set: expected a free port of rank 0's host, 1 to 65535");
}

std::string read_master_host(const Lookup& lookup, const Environment& environment) {
  if (auto host = lookup("MASTER_ADDR")) {
    if (host->empty() || host->find_first_of(" \t\n/") != std::string::npos) {
      refuse("MASTER_ADDR", *host, "a host name or an IP address");
    }
    return *host;
  }
  if (environment.single_host()) return "127.0.0.1";
  if (auto nodes = first_set(
          lookup, {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"})) {
    return first_host(nodes->name, nodes->value);
  }
  if (auto launcher = lookup("SLURM_LAUNCH_NODE_IPADDR"); launcher && !launcher->empty()) {
    return *launcher;
  }
  throw ConfigError(
      "MASTER_ADDR is not set: expected the name or address of rank 0's host");
}

}  // namespace

Lookup process_environment() {
  return [](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    return value ? std::optional<std::string>(value) : std::nullopt;
  };
}

int parse_int(const std::string& what, const std::string& value, int least, int most) {
  std::int64_t number = 0;
  auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (error != std::errc() || end != value.data() + value.size() || number < least ||
      number > most) {
    refuse(what, value,
           most == INT_MAX ? "a whole number of at least " + std::to_string(least)
                           : "a whole number from " + std::to_string(least) + " to " +
                                 std::to_string(most));
  }
  return static_cast<int>(number);
}

Environment read_environment(const Lookup& lookup, std::optional<int> rank,
                             std::optional<int> world_size) {
  if (rank && *rank < 0) refuse("rank", std::to_string(*rank), "a rank of at least 0");
  if (world_size && *world_size < 1) {
    refuse("world_size", std::to_string(*world_size), "at least 1");
  }
  const Dialect* dialect = find_dialect(lookup);
  Environment found;
  if (rank && world_size && (!dialect || !agree(lookup, *dialect, *rank, *world_size))) {
    found.rank = *rank;
    found.world_size = *world_size;
    found.source = "options";
  } else if (dialect) {
    found = from_dialect(lookup, *dialect, rank, world_size);
  } else if (rank || world_size) {
    throw ConfigError(std::string(rank ? "rank" : "world_size") + "=" +
                      std::to_string(rank ? *rank : *world_size) + " is given without " +
                      (rank ? "world_size, and WORLD_SIZE" : "rank, and RANK") +
                      " is not set: expected both");
  }
  found.restart_count = read_int(lookup, {"TORCHELASTIC_RESTART_COUNT"}, 0).value_or(0);
  check_places(found);
  return found;
}

std::optional<int> read_node(const Lookup& lookup) {
  return read_int(lookup, {"GROUP_RANK", "SLURM_NODEID"}, 0);
}

Master read_master(const Lookup& lookup, const Environment& environment) {
  return {read_master_host(lookup, environment), read_master_port(lookup)};
}

std::optional<std::chrono::milliseconds> read_timeout(const Lookup& lookup) {
  const auto value = lookup("BRIGADE_TIMEOUT");
  if (!value) return std::nullopt;
  const std::string& text = *value;
  const char* const last = text.data() + text.size();
  double seconds = 0;
  const auto [end, error] = std::from_chars(text.data(), last, seconds);
  if (error != std::errc() || end != last || !(seconds >= 0.001 && seconds <= 1e7)) {
    refuse("BRIGADE_TIMEOUT", text, "seconds, from 0.001 to 10000000");
  }
  return std::chrono::milliseconds(std::llround(seconds * 1000));
}

std::string first_host(const std::string& variable, const std::string& node_list) {
  std::string host;
  for (std::size_t at = 0; at < node_list.size() && node_list[at] != ','; ++at) {
    if (node_list[at] != '[') {
      host += node_list[at];
      continue;
    }
    auto end = node_list.find_first_of("-,]", at);
    auto close = node_list.find(']', at);
    if (close == std::string::npos || end == at + 1) {
      refuse(variable, node_list, "a node list like node[1-4],other");
    }
    host += node_list.substr(at + 1, end - at - 1);
    at = close;
  }
  if (host.empty() || host.find_first_of("] \t") != std::string::npos) {
    refuse(variable, node_list, "a node list like node[1-4],other");
  }
  return host;
}

std::optional<int> tasks_on_node(const std::string& variable, const std::string& tasks,
                                 std::optional<int> node) {
  const std::string expected = "task counts like 4(x2),3";
  std::vector<std::pair<int, int>> runs;  // tasks a node, nodes
  for (std::size_t at = 0; at <= tasks.size();) {
    auto comma = std::min(tasks.find(',', at), tasks.size());
    std::string run = tasks.substr(at, comma - at);
    at = comma + 1;
    int nodes = 1;
    try {
      if (auto open = run.find("(x"); open != std::string::npos) {
        if (run.back() != ')') refuse(variable, tasks, expected);
        nodes = parse_int("", run.substr(open + 2, run.size() - open - 3), 1, INT_MAX);
        run.resize(open);
      }
      runs.emplace_back(parse_int("", run, 1, INT_MAX), nodes);
    } catch (const ConfigError&) {
      refuse(variable, tasks, expected);
    }
  }
  if (runs.size() == 1) return runs[0].first;
  for (const auto& [count, nodes] : runs) {
    if (!node) return std::nullopt;
    if (*node < nodes) return count;
    *node -= nodes;
  }
  return std::nullopt;
}

}  // namespace brigade::group
