#include "top/frame.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/number_text.h"

namespace brigade::tool {
namespace {

using base::bytes_text;
using base::ms_text;
using launching::JobView;
using launching::RankView;

std::string duration_text(double seconds) {
  const auto all = static_cast<std::int64_t>(std::max(0.0, seconds));
  const auto part = [](std::int64_t value, const char* unit) {
    return std::to_string(value) + " " + unit;
  };
  if (all < 60) return part(all, "s");
  if (all < 3600) return part(all / 60, "min ") + part(all % 60, "s");
  return part(all / 3600, "h ") + part(all / 60 % 60, "min");
}

std::string count_text(int count, const std::string& what) {
  return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
}

std::string job_line(const JobView& view) {
  const auto& job = view.job;
  std::string text = "job " + job.run_id + ", launcher " + std::to_string(job.pid) +
                     " on " + job.host + ", since " + duration_text(view.seconds) + ", " +
                     count_text(job.workers, "worker");
  if (job.world == job.workers && job.nodes == 1) return text;
  text += " of " + std::to_string(job.world);
  if (job.elastic) return text + " (those of other hosts show there)";
  return job.first_rank == 0 ? text : text + " (rank 0's host shows all)";
}

// What has happened to the job's workers.
std::string fate_line(const JobView& view) {
  const auto& job = view.job;
  if (!job.elastic) {
    return std::to_string(job.restarts) + " of " + count_text(job.max_restarts, "restart") +
           " used";
  }
  std::string text = view.generation() < 0
                         ? "elastic"
                         : "elastic, generation " + std::to_string(view.generation());
  for (const RankView& one : view.ranks) {
    if (one.status.generation != view.generation() || one.status.members == 0) continue;
    text += " of " + count_text(one.status.members, "member");
    break;
  }
  return text + ", " + std::to_string(job.replaced) + " replaced";
}

// Who has begun most steps says where the job is.
std::string progress_line(const JobView& view) {
  const auto fewer = [](const RankView& a, const RankView& b) {
    return a.status.steps < b.status.steps;
  };
  const auto first = std::ranges::max_element(view.ranks, fewer);
  if (first == view.ranks.end() || first->status.steps == 0)
    return "no step yet: only models of Brigade's tell of them";
  std::string text = "step " + std::to_string(first->status.steps);
  if (first->step_ms > 0) {
    text += ", " + ms_text(first->step_ms) + " ms a step, " + ms_text(first->wait_ms) +
            " ms of it exposed";
  }
  text += ", hook " + std::string(first->status.hook);
  for (const RankView& one : view.ranks) {
    if (one.status.losses == 0) continue;
    return text + ", loss " + base::readable(one.status.loss) + " (rank " +
           std::to_string(one.rank) + ")";
  }
  return text;
}

std::string process_text(const RankView& one) {
  if (one.pid <= 0) return "-";
  return std::to_string(one.pid) + (one.host.empty() ? "" : " on " + one.host);
}

std::vector<std::string> rank_row(const RankView& one) {
  const auto& status = one.status;
  const auto a_step = [&](std::int64_t bytes) {
    return status.steps > 0
               ? bytes_text(static_cast<double>(bytes) / static_cast<double>(status.steps))
               : std::string("-");
  };
  const auto ms = [](double value) { return value > 0 ? ms_text(value) : "-"; };
  return {std::to_string(one.rank),
          one.straggles ? "straggles" : launching::name_of(one.state),
          std::to_string(status.steps),
          ms(one.step_ms),
          ms(one.compute_ms),
          ms(one.wait_ms),
          a_step(status.bytes_sent - status.bytes_to_other_hosts),
          a_step(status.bytes_to_other_hosts),
          status.losses > 0 ? base::readable(status.loss) : "-",
          process_text(one)};
}

// Of each bucket the rank that waited longest for it.
std::vector<std::vector<std::string>> bucket_rows(const JobView& view) {
  std::vector<std::vector<std::string>> rows{
      {"bucket", "exposed ms", "on rank", "reduced in ms", "sent"}};
  for (int i = 0; i < group::RankStatus::kBuckets; ++i) {
    const RankView* worst = nullptr;
    for (const RankView& one : view.ranks) {
      if (i >= one.status.buckets) continue;
      if (!worst || one.status.bucket[i].exposed_ms > worst->status.bucket[i].exposed_ms)
        worst = &one;
    }
    if (!worst) break;
    const auto& bucket = worst->status.bucket[i];
    rows.push_back({std::to_string(i), ms_text(bucket.exposed_ms),
                    std::to_string(worst->rank), ms_text(bucket.reduce_ms),
                    bytes_text(static_cast<double>(bucket.bytes_sent))});
  }
  return rows;
}

nlohmann::ordered_json rank_json(const RankView& one, const std::string& this_host) {
  const auto& status = one.status;
  nlohmann::ordered_json buckets = nlohmann::ordered_json::array();
  for (int i = 0; i < status.buckets; ++i) {
    buckets.push_back({{"bucket", i},
                       {"bytes_sent", status.bucket[i].bytes_sent},
                       {"reduce_ms", status.bucket[i].reduce_ms},
                       {"exposed_ms", status.bucket[i].exposed_ms}});
  }
  nlohmann::ordered_json json = {
      {"rank", one.rank},
      {"host", one.host.empty() ? this_host : one.host},
      {"pid", one.pid},
      {"state", launching::name_of(one.state)},
      {"hook", std::string(status.hook)},
      {"steps", status.steps},
      {"step_ms", one.step_ms},
      {"compute_ms", one.compute_ms},
      {"exposed_ms", one.wait_ms},
      {"seconds_since_step", one.seconds_since_step},
      {"straggles", one.straggles},
      {"bytes_inside_host", status.bytes_sent - status.bytes_to_other_hosts},
      {"bytes_to_other_hosts", status.bytes_to_other_hosts},
      {"loss", nullptr},
      {"losses_not_finite", status.bad_losses},
      {"gradients_not_finite", status.bad_gradients},
      {"buckets", buckets}};
  if (status.losses > 0 && std::isfinite(status.loss)) json["loss"] = status.loss;
  return json;
}

}  // namespace

std::vector<std::string> frame_of(const JobView& view, const Terminal& terminal) {
  std::vector<std::string> lines{job_line(view), "  " + view.job.command,
                                 terminal.paint(Paint::bold, progress_line(view)),
                                 fate_line(view)};
  for (const std::string& complaint : launching::complaints_about(view))
    lines.push_back(terminal.paint(Paint::yellow, "! " + complaint));
  lines.emplace_back();
  std::vector<std::vector<std::string>> ranks{{"rank", "state", "step", "ms", "computes",
                                               "exposed", "sent here", "to others", "loss",
                                               "process"}};
  for (const RankView& one : view.ranks) ranks.push_back(rank_row(one));
  for (const std::string& line : table_lines(ranks)) lines.push_back(line);
  if (const auto buckets = bucket_rows(view); buckets.size() > 1) {
    lines.emplace_back();
    for (const std::string& line : table_lines(buckets)) lines.push_back(line);
  }
  return lines;
}

nlohmann::ordered_json frame_json(const JobView& view) {
  nlohmann::ordered_json ranks = nlohmann::ordered_json::array();
  for (const RankView& one : view.ranks) ranks.push_back(rank_json(one, view.job.host));
  const auto& job = view.job;
  return {{"job", job.run_id},
          {"host", job.host},
          {"command", job.command},
          {"launcher", job.pid},
          {"seconds", view.seconds},
          {"nodes", job.nodes},
          {"workers", job.workers},
          {"world", job.world},
          {"elastic", job.elastic},
          {"generation", view.generation()},
          {"restarts", job.restarts},
          {"max_restarts", job.max_restarts},
          {"replaced", job.replaced},
          {"complaints", launching::complaints_about(view)},
          {"ranks", ranks}};
}

}  // namespace brigade::tool
