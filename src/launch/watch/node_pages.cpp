#include "launch/watch/node_pages.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <type_traits>

#include "base/files/read_whole.h"
#include "group/live/rank_page.h"

namespace brigade::launching {
namespace {

// Launchers of another build are not understood, and not shown.
constexpr std::uint64_t kMagic = 0x3130656761706762;

struct PackedRank {
  std::uint64_t magic = kMagic;
  std::int32_t rank = 0;
  std::int32_t attempt = 0;
  std::int64_t pid = 0;
  std::int64_t state = 0;
  double seconds_since_step = 0;  // clocks of two hosts differ
  char host[64] = {};
  group::RankStatus status;
};
static_assert(std::is_trivially_copyable_v<PackedRank>);

std::string file_of(const std::string& folder, int node) {
  return folder + "/node_" + std::to_string(node);
}

PackedRank packed(const RankView& one, const JobInfo& job) {
  PackedRank to{.rank = one.rank,
                .attempt = job.restarts,
                .pid = one.pid,
                .state = static_cast<std::int64_t>(one.state),
                .seconds_since_step = one.seconds_since_step,
                .status = one.status};
  std::strncpy(to.host, job.host.c_str(), sizeof to.host - 1);
  return to;
}

bool fits(const PackedRank& from, const JobInfo& job) {
  const bool here = from.rank >= job.first_rank && from.rank < job.first_rank + job.workers;
  return from.magic == kMagic && from.attempt == job.restarts && from.rank >= 0 &&
         from.rank < job.world && !here && from.state >= 0 &&
         from.state <= static_cast<std::int64_t>(RankView::State::ended);
}

RankView unpacked(PackedRank from, double age) {
  from.host[sizeof from.host - 1] = 0;
  RankView view{.rank = from.rank,
                .host = group::printable(from.host),
                .pid = from.pid,
                .state = static_cast<RankView::State>(from.state),
                .status = group::checked(from.status)};
  if (std::isfinite(from.seconds_since_step) && view.status.steps > 0)
    view.seconds_since_step = from.seconds_since_step + age;
  return view;
}

}  // namespace

std::string pack_ranks(const std::string& folder) {
  const auto view = read_job(folder);
  std::string bytes;
  if (!view) return bytes;
  for (const RankView& one : view->ranks) {
    if (!one.host.empty()) continue;
    const PackedRank rank = packed(one, view->job);
    bytes.append(reinterpret_cast<const char*>(&rank), sizeof rank);
  }
  return bytes;
}

void keep_node(const std::string& folder, int node, const std::string& bytes) {
  const std::string path = file_of(folder, node);
  const std::string fresh = path + ".new";
  const std::int64_t now = group::monotonic_ns();
  std::ofstream(fresh, std::ios::binary)
      .write(reinterpret_cast<const char*>(&now), sizeof now)
      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  std::rename(fresh.c_str(), path.c_str());
}

std::vector<RankView> read_nodes(const std::string& folder, const JobInfo& job) {
  std::vector<RankView> ranks;
  for (int node = 1; node < job.nodes; ++node) {
    const std::string bytes = base::read_whole(file_of(folder, node));
    std::int64_t kept_ns = 0;
    if (bytes.size() < sizeof kept_ns) continue;
    std::memcpy(&kept_ns, bytes.data(), sizeof kept_ns);
    const double age = 1e-9 * static_cast<double>(group::monotonic_ns() - kept_ns);
    for (size_t at = sizeof kept_ns; at + sizeof(PackedRank) <= bytes.size();
         at += sizeof(PackedRank)) {
      PackedRank rank;
      std::memcpy(static_cast<void*>(&rank), bytes.data() + at, sizeof rank);
      if (fits(rank, job)) ranks.push_back(unpacked(rank, age));
    }
  }
  return ranks;
}

void remove_nodes(const std::string& folder, int nodes) {
  for (int node = 1; node < nodes; ++node) {
    const std::string path = file_of(folder, node);
    unlink(path.c_str());
    unlink((path + ".new").c_str());
  }
}

}  // namespace brigade::launching
