// How one look shows all hosts of a job: the other launchers tell node 0 a few times a
// second what their workers show, and node 0's launcher keeps it in its status folder.
#pragma once
#include <string>
#include <vector>

#include "launch/watch/job_view.h"

namespace brigade::launching {

// What the workers of this host show now, as bytes for node 0's launcher; empty: nothing.
std::string pack_ranks(const std::string& folder);
// On node 0: keeps what that node has sent.
void keep_node(const std::string& folder, int node, const std::string& bytes);
// On node 0: the workers of other hosts in the job's current attempt, as last heard. The
// bytes come from another host: what does not fit the job is left out.
std::vector<RankView> read_nodes(const std::string& folder, const JobInfo& job);
// Forgets what was kept.
void remove_nodes(const std::string& folder, int nodes);

}  // namespace brigade::launching
