#include "launch/watch/job_view.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <map>

#include "base/files/read_whole.h"
#include "base/number_text.h"
#include "group/live/rank_page.h"
#include "launch/watch/node_pages.h"

namespace brigade::launching {
namespace {

constexpr double kStraggles = 1.25;   // as src/report/waiting.h
constexpr double kNoticeable = 0.05;  // of a step
// A median of fewer steps would name whoever was slow to start.
constexpr std::int64_t kStepsToJudge = 8;
constexpr double kStandsStillSeconds = 10;
constexpr double kStandsStillSteps = 20;

// 0: there is no such process. Else as in proc(5).
char process_state(std::int64_t pid) {
  const std::string text = base::read_whole("/proc/" + std::to_string(pid) + "/stat");
  const size_t name_end = text.rfind(')');  // a name may have any character
  return name_end == std::string::npos || name_end + 2 >= text.size() ? 0
                                                                      : text[name_end + 2];
}

RankView::State state_of(std::int64_t pid) {
  if (pid <= 0) return RankView::State::starting;
  const char state = process_state(pid);
  if (state == 0 || state == 'Z' || state == 'X') return RankView::State::ended;
  return state == 'T' || state == 't' ? RankView::State::stopped : RankView::State::running;
}

double median_of_recent(const group::RankStatus& status, float group::StepStatus::*field) {
  const auto count = std::min<std::int64_t>(status.steps_over, group::RankStatus::kSteps);
  std::vector<float> values;
  for (std::int64_t i = 0; i < count; ++i) {
    const float value = status.recent[i].*field;
    if (std::isfinite(value)) values.push_back(value);
  }
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

void find_stragglers(std::vector<RankView>& ranks) {
  const auto judged = [](const RankView& one) {
    return one.state != RankView::State::ended && one.status.steps_over >= kStepsToJudge;
  };
  std::vector<double> computing;
  for (const RankView& one : ranks)
    if (judged(one)) computing.push_back(one.compute_ms);
  if (computing.size() < 2) return;
  std::ranges::sort(computing);
  // Of two ranks the quicker one is the measure.
  const double median = computing[(computing.size() - 1) / 2];
  for (RankView& one : ranks) {
    one.straggles = judged(one) && one.compute_ms > kStraggles * median &&
                    one.compute_ms - median > kNoticeable * one.step_ms;
  }
}

void find_medians(RankView& view) {
  view.step_ms = median_of_recent(view.status, &group::StepStatus::step_ms);
  view.compute_ms = median_of_recent(view.status, &group::StepStatus::compute_ms);
  view.wait_ms = median_of_recent(view.status, &group::StepStatus::wait_ms);
}

// What the program prints counts where it tells nothing itself.
void take_printed_loss(const std::string& folder, RankView& view) {
  if (view.status.losses > 0) return;
  const auto printed = group::read_rank_page(printed_page_of(folder, view.rank));
  if (!printed) return;
  view.status.losses = printed->status.losses;
  view.status.bad_losses = printed->status.bad_losses;
  view.status.loss = printed->status.loss;
}

RankView read_rank(const std::string& folder, int rank, std::int64_t now) {
  RankView view{.rank = rank};
  const auto reading = group::read_rank_page(rank_page_of(folder, rank));
  if (!reading) return view;
  view.pid = reading->pid;
  view.state = state_of(reading->pid);
  view.status = reading->status;
  take_printed_loss(folder, view);
  if (view.status.steps > 0)
    view.seconds_since_step = 1e-9 * static_cast<double>(now - view.status.step_began_ns);
  return view;
}

std::string seconds_text(double seconds) {
  return std::to_string(static_cast<std::int64_t>(seconds)) + " s";
}

std::string list_of(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i)
    text += (i == 0                  ? ""
             : i + 1 == ranks.size() ? " and "
                                     : ", ") +
            std::to_string(ranks[i]);
  return text;
}

// All wait: who has begun fewest steps is waited for.
void complain_of_standstill(const JobView& view, std::vector<std::string>& all) {
  std::map<std::int64_t, std::vector<int>> by_step;
  double quiet = -1;
  double step_ms = 0;
  for (const RankView& one : view.ranks) {
    if (one.status.steps == 0 || one.state == RankView::State::ended) continue;
    by_step[one.status.steps].push_back(one.rank);
    quiet = quiet < 0 ? one.seconds_since_step : std::min(quiet, one.seconds_since_step);
    step_ms = std::max(step_ms, one.step_ms);
  }
  if (quiet < std::max(kStandsStillSeconds, kStandsStillSteps * step_ms / 1e3)) return;
  std::string text = "no step for " + seconds_text(quiet);
  if (by_step.size() > 1) {
    text += ": " + list_of(by_step.begin()->second) + " at step " +
            std::to_string(by_step.begin()->first) + ", others at " +
            std::to_string(by_step.rbegin()->first);
  }
  all.push_back(text);
}

}  // namespace

std::vector<std::string> status_places() {
  std::vector<std::string> places{"/dev/shm"};
  const char* named = std::getenv("TMPDIR");
  if (named && *named) places.emplace_back(named);
  places.emplace_back("/tmp");
  return places;
}

std::string rank_page_of(const std::string& folder, int rank) {
  return folder + "/rank_" + std::to_string(rank);
}

std::string printed_page_of(const std::string& folder, int rank) {
  return rank_page_of(folder, rank) + "_printed";
}

const char* name_of(RankView::State state) {
  switch (state) {
    case RankView::State::starting:
      return "starting";
    case RankView::State::running:
      return "running";
    case RankView::State::stopped:
      return "stopped";
    case RankView::State::ended:
      return "ended";
  }
  return "?";
}

int JobView::generation() const {
  int newest = -1;
  for (const RankView& one : ranks) newest = std::max(newest, one.status.generation);
  return newest;
}

std::optional<JobView> read_job(const std::string& folder) {
  const auto job = job_from_json(base::read_whole(folder + "/job.json"));
  if (!job || state_of(job->pid) == RankView::State::ended) return std::nullopt;
  const std::int64_t now = group::monotonic_ns();
  JobView view{.job = *job};
  view.seconds = 1e-9 * static_cast<double>(now - job->started_ns);
  for (int i = 0; i < job->workers; ++i)
    view.ranks.push_back(read_rank(folder, job->first_rank + i, now));
  std::ranges::move(read_nodes(folder, *job), std::back_inserter(view.ranks));
  std::ranges::stable_sort(view.ranks, {}, &RankView::rank);
  std::ranges::for_each(view.ranks, find_medians);
  find_stragglers(view.ranks);
  return view;
}

std::vector<std::string> find_jobs() {
  std::map<std::int64_t, std::string> by_start;
  for (const std::string& place : status_places()) {
    std::error_code failed;
    for (const auto& entry : std::filesystem::directory_iterator(place, failed)) {
      if (!entry.path().filename().string().starts_with(kStatusPrefix)) continue;
      struct stat info {};
      if (lstat(entry.path().c_str(), &info) != 0 || !S_ISDIR(info.st_mode) ||
          info.st_uid != geteuid()) {
        continue;
      }
      if (const auto view = read_job(entry.path()))
        by_start[view->job.started_ns] = entry.path();
    }
  }
  std::vector<std::string> folders;
  for (const auto& [start, folder] : by_start) folders.push_back(folder);
  return folders;
}

std::vector<std::string> complaints_about(const JobView& view) {
  std::vector<std::string> all;
  double quickest = 0;
  for (const RankView& one : view.ranks)
    if (!one.straggles && one.compute_ms > 0) quickest = std::max(quickest, one.compute_ms);
  for (const RankView& one : view.ranks) {
    const std::string rank = "rank " + std::to_string(one.rank);
    if (one.straggles) {
      all.push_back(rank + " straggles: it computes for " + base::ms_text(one.compute_ms) +
                    " ms a step, the others for " + base::ms_text(quickest) +
                    " ms at most");
    }
    if (one.state == RankView::State::ended || one.state == RankView::State::stopped)
      all.push_back(rank + " (process " + std::to_string(one.pid) +
                    (one.host.empty() ? "" : " on " + one.host) + ") " +
                    (one.state == RankView::State::ended ? "has ended" : "is stopped"));
    if (one.status.bad_losses > 0)
      all.push_back(rank + " had " + std::to_string(one.status.bad_losses) +
                    " losses that are no finite numbers");
    if (one.status.bad_gradients > 0)
      all.push_back(rank + " had gradients that are no finite numbers, in " +
                    std::to_string(one.status.bad_gradients) + " samples of a bucket");
  }
  complain_of_standstill(view, all);
  return all;
}

}  // namespace brigade::launching
