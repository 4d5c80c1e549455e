#include "train/output.h"

#include <nlohmann/json.hpp>

#include "common/json.h"
#include "common/options.h"

namespace brigade::tool {
namespace {

using Json = nlohmann::ordered_json;

const char* what_examples_are(const TrainData& data) {
  switch (data.kind) {
    case TrainData::Kind::images:
      return "image";
    case TrainData::Kind::text:
      return "window";
  }
  return "";
}

}  // namespace

std::string plural(std::int64_t count, const std::string& what) {
  return readable(static_cast<double>(count)) + " " + what + (count == 1 ? "" : "s");
}

void TrainOutput::introduce(const TrainOutcome& outcome, const TrainData& data) {
  const std::string name = what_examples_are(data);
  terminal_.line(plural(outcome.workers, "worker") + " over " + outcome.backend +
                 (options_.link.empty() ? "" : ", " + options_.link) + ": a " +
                 options_.model.model + " of " + plural(outcome.parameters, "parameter") +
                 ", hook " + options_.hook + ", on " + data.name + " (" +
                 plural(outcome.train_examples, name) + " to train, " +
                 readable(static_cast<double>(outcome.test_examples)) + " to test)");
  if (outcome.first_step > 0) {
    terminal_.line("taken up from " + options_.checkpoint + " at step " +
                   std::to_string(outcome.first_step));
  } else if (options_.resume) {
    terminal_.line("no checkpoint in " + options_.checkpoint + " yet: from the beginning");
  }
}

void TrainOutput::interrupted(std::int64_t step) {
  terminal_.line("interrupted: step " + std::to_string(step) + " is saved in " +
                 options_.checkpoint + "; --resume takes it up");
}

void TrainOutput::evaluated(const Evaluation& evaluation) {
  // Keeps as many as History does: when there are more, every second one is dropped.
  if (evaluations_.size() >= report::History::kMost) {
    std::size_t index = 0;
    std::erase_if(evaluations_, [&](const Evaluation&) { return index++ % 2 == 1; });
  }
  evaluations_.push_back(evaluation);
}

void TrainOutput::step(const StepPoint& point, double lr,
                       const std::optional<Evaluation>& evaluation) {
  if (evaluation) {
    Evaluation timed = *evaluation;
    timed.seconds = point.seconds;
    timed.bytes_sent = point.bytes_sent;
    evaluated(timed);
  }
  history_.add(point);
  const std::string steps = std::to_string(options_.steps);
  std::string text = padded(std::to_string(point.step), -static_cast<int>(steps.size())) +
                     "/" + steps + "  loss " + decimals(point.loss, 4);
  if (!evaluations_.empty()) {
    text += "  test loss " + decimals(evaluations_.back().loss, 4) + "  accuracy " +
            decimals(evaluations_.back().accuracy, 3);
  }
  char rate[32];
  std::snprintf(rate, sizeof rate, "  lr %.3g", lr);
  text += rate + ("  " + ms_text(point.step_ms) + " ms");
  if (evaluation || history_.count() == 1) {
    terminal_.line("  step " + text);
  } else {
    const double done =
        static_cast<double>(point.step) / static_cast<double>(options_.steps);
    terminal_.progress("  " + terminal_.paint(Paint::cyan, terminal_.bar(done, 16)) + " " +
                       text);
  }
}

void TrainOutput::finish(Series series, const TrainOutcome& outcome) {
  if (series.points.empty()) {
    series.points = history_.points();
    summarise(series);
  }
  print_summary(series, outcome);
  write_result(series, outcome);
}

void TrainOutput::print_summary(const Series& series, const TrainOutcome& outcome) {
  const auto say = [&](const std::string& what, const std::string& text) {
    terminal_.line("  " + padded(what, 15) + text);
  };
  terminal_.line();
  if (!evaluations_.empty()) {
    const Evaluation& last = evaluations_.back();
    say("test", "accuracy " + decimals(last.accuracy, 3) + ", loss " +
                    decimals(last.loss, 4) + ", on " +
                    readable(static_cast<double>(outcome.test_examples)) +
                    " that were not trained on");
  }
  const std::string all = plural(outcome.workers, "worker");
  if (!series.takes_mean) {
    say("replicas", "each on its own: hook " + series.hook + " takes no mean");
  } else if (series.identical()) {
    say("replicas", "bit-identical on " + all + " (" + series.fingerprints[0] + ")");
  } else {
    std::string text = terminal_.paint(Paint::red, "DIFFERENT:");
    for (const std::string& one : series.fingerprints) text += " " + one;
    say("replicas", text);
  }
  if (!series.points.empty()) {
    say("gradients",
        bytes_text(series.gradient_bytes) + " a step in " +
            plural(static_cast<std::int64_t>(outcome.bucket_bytes.size()), "bucket") +
            ", " + bytes_text(series.bytes_per_step) + " sent");
    say("time", decimals(series.points.back().seconds, 1) + " s, " +
                    ms_text(series.step_ms) + " ms a step");
  }
  if (saved_) say("checkpoint", options_.checkpoint + ", step " + std::to_string(*saved_));
  if (!options_.out.empty()) {
    say("report", options_.out + "/report.html");
    say("metrics", options_.out + "/metrics.jsonl");
    if (!series.spans.empty())
      say("trace", options_.out + "/trace.json, for ui.perfetto.dev or chrome://tracing");
    say("TensorBoard", "tensorboard --logdir " + options_.out + "/tensorboard");
  }
}

void TrainOutput::write_result(const Series& series, const TrainOutcome& outcome) const {
  Json evaluations = Json::array();
  for (const Evaluation& one : evaluations_) {
    evaluations.push_back({{"step", one.step},
                           {"loss", one.loss},
                           {"accuracy", one.accuracy},
                           {"seconds", one.seconds},
                           {"bytes_sent", one.bytes_sent}});
  }
  Json losses = Json::array();
  for (const StepPoint& point : history_.points()) losses.push_back(point.loss);
  Json json = {{"data", options_.data},
               {"model", options_.model.model},
               {"parameters", outcome.parameters},
               {"precision", options_.precision},
               {"hook", options_.hook},
               {"optimizer", options_.optimizer},
               {"diloco", options_.diloco},
               {"optimizer_in_backward", options_.optimizer_in_backward},
               {"schedule", options_.schedule},
               {"workers", outcome.workers},
               {"backend", outcome.backend},
               {"device", options_.workers.device},
               {"link", series.link},
               {"hosts", options_.hosts},
               {"seed", options_.seed},
               {"batch_per_worker", options_.batch},
               {"train_examples", outcome.train_examples},
               {"test_examples", outcome.test_examples},
               {"resumed_from", outcome.first_step},
               {"steps", std::max(options_.steps, outcome.first_step)},
               {"losses", losses},
               {"losses_every", history_.every()},
               {"evaluations", evaluations},
               {"step_ms", series.step_ms},
               {"gradient_bytes", series.gradient_bytes},
               {"bucket_bytes", outcome.bucket_bytes},
               {"bytes_sent_per_step", series.bytes_per_step},
               {"overlap", series.overlap},
               {"fingerprints", series.fingerprints},
               {"replicas_identical", series.identical()}};
  if (!evaluations_.empty()) json["test_accuracy"] = evaluations_.back().accuracy;
  write_json(options_.json, json);
}

}  // namespace brigade::tool
