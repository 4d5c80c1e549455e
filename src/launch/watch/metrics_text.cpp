#include "launch/watch/metrics_text.h"

#include <cmath>
#include <cstdio>
#include <functional>
#include <utility>

namespace brigade::launching {
namespace {

using Labels = std::vector<std::pair<const char*, std::string>>;

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\' || c == '"') out += '\\';
    if (c == '\n') {
      out += "\\n";
    } else {
      out += c;
    }
  }
  return out;
}

std::string number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  char text[32];
  std::snprintf(text, sizeof text, "%.15g", value);
  return text;
}

class Text {
 public:
  void metric(const char* name, const char* type, const char* help) {
    name_ = name;
    text_ +=
        std::string("# HELP ") + name + " " + help + "\n# TYPE " + name + " " + type + "\n";
  }
  void sample(const Labels& labels, double value) {
    text_ += name_;
    for (size_t i = 0; i < labels.size(); ++i) {
      text_ += std::string(i == 0 ? "{" : ",") + labels[i].first + "=\"" +
               escaped(labels[i].second) + "\"";
    }
    text_ += (labels.empty() ? " " : "} ") + number(value) + "\n";
  }
  std::string take() { return std::move(text_); }

 private:
  const char* name_ = "";
  std::string text_;
};

Labels labels_of(const RankView& one) {
  return {{"rank", std::to_string(one.rank)}, {"hook", one.status.hook}};
}

struct RankMetric {
  const char* name;
  const char* type;
  const char* help;
  std::function<double(const RankView&)> value;
};

const RankMetric kOfRanks[] = {
    {"brigade_steps_total", "counter", "Training steps that the rank has begun.",
     [](const RankView& one) { return static_cast<double>(one.status.steps); }},
    {"brigade_step_seconds", "gauge", "Time of a step, median of the last 16.",
     [](const RankView& one) { return one.step_ms / 1e3; }},
    {"brigade_compute_seconds", "gauge",
     "Time in a step that the rank computes before its last bucket, median of the last 16.",
     [](const RankView& one) { return one.compute_ms / 1e3; }},
    {"brigade_exposed_seconds", "gauge",
     "Time in a step that the rank waits for its gradients, median of the last 16.",
     [](const RankView& one) { return one.wait_ms / 1e3; }},
    {"brigade_seconds_since_step", "gauge", "Time since the rank has begun a step.",
     [](const RankView& one) { return one.seconds_since_step; }},
    {"brigade_straggler", "gauge",
     "1: the rank computes for more than 1.25 times the median of the ranks.",
     [](const RankView& one) { return one.straggles ? 1.0 : 0.0; }},
};

void add_ranks(Text& text, const JobView& view) {
  text.metric("brigade_rank_up", "gauge", "1: the rank's process runs.");
  for (const RankView& one : view.ranks) {
    const bool up =
        one.state == RankView::State::running || one.state == RankView::State::starting;
    text.sample({{"rank", std::to_string(one.rank)}}, up ? 1 : 0);
  }
  for (const RankMetric& metric : kOfRanks) {
    text.metric(metric.name, metric.type, metric.help);
    for (const RankView& one : view.ranks)
      if (one.status.steps > 0) text.sample(labels_of(one), metric.value(one));
  }
  text.metric("brigade_bytes_sent_total", "counter",
              "Bytes that the rank has sent, inside its host and to other hosts.");
  for (const RankView& one : view.ranks) {
    Labels labels = labels_of(one);
    labels.emplace_back("link", "host");
    const auto far = static_cast<double>(one.status.bytes_to_other_hosts);
    text.sample(labels, static_cast<double>(one.status.bytes_sent) - far);
    labels.back().second = "network";
    text.sample(labels, far);
  }
  text.metric("brigade_loss", "gauge", "The loss that the rank told last.");
  for (const RankView& one : view.ranks)
    if (one.status.losses > 0) text.sample(labels_of(one), one.status.loss);
  text.metric("brigade_not_finite_total", "counter",
              "Losses, and samples of gradients, that were no finite numbers.");
  for (const RankView& one : view.ranks) {
    const std::string rank = std::to_string(one.rank);
    text.sample({{"rank", rank}, {"what", "loss"}},
                static_cast<double>(one.status.bad_losses));
    text.sample({{"rank", rank}, {"what", "gradient"}},
                static_cast<double>(one.status.bad_gradients));
  }
}

void add_buckets(Text& text, const JobView& view, const char* name, const char* help,
                 double (*value)(const group::BucketStatus&)) {
  text.metric(name, "gauge", help);
  for (const RankView& one : view.ranks) {
    for (int i = 0; i < one.status.buckets; ++i) {
      Labels labels = labels_of(one);
      labels.emplace_back("bucket", std::to_string(i));
      text.sample(labels, value(one.status.bucket[i]));
    }
  }
}

}  // namespace

std::string metrics_text(const JobView& whole) {
  JobView view = whole;
  std::erase_if(view.ranks, [](const RankView& one) { return !one.host.empty(); });
  Text text;
  text.metric("brigade_job_info", "gauge", "Always 1: the job's name and host.");
  text.sample({{"run_id", view.job.run_id}, {"host", view.job.host}}, 1);
  text.metric("brigade_workers", "gauge", "Workers of the job, on this host.");
  text.sample({}, view.job.workers);
  text.metric("brigade_restarts_total", "counter", "Restarts of all workers.");
  text.sample({}, view.job.restarts);
  text.metric("brigade_replaced_total", "counter", "Workers that were replaced.");
  text.sample({}, view.job.replaced);
  if (view.generation() >= 0) {
    text.metric("brigade_generation", "gauge", "Generation of the elastic job.");
    text.sample({}, view.generation());
  }
  add_ranks(text, view);
  add_buckets(text, view, "brigade_bucket_exposed_seconds",
              "Time that the last step waited for the bucket.",
              [](const group::BucketStatus& bucket) { return bucket.exposed_ms / 1e3; });
  add_buckets(text, view, "brigade_bucket_reduce_seconds",
              "Time that the bucket was under way in the last step.",
              [](const group::BucketStatus& bucket) { return bucket.reduce_ms / 1e3; });
  add_buckets(text, view, "brigade_bucket_bytes",
              "Bytes that the rank sent for the bucket in the last step.",
              [](const group::BucketStatus& bucket) {
                return static_cast<double>(bucket.bytes_sent);
              });
  return text.take();
}

}  // namespace brigade::launching
