// What brigade train leaves behind: lines while it works, metrics, TensorBoard's events, a
// report, a trace and JSON.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "brigade/report/metrics.h"
#include "brigade/report/run_record.h"
#include "brigade/report/tensorboard.h"
#include "common/records.h"
#include "common/terminal.h"
#include "train/history.h"
#include "train/options.h"

namespace brigade::tool {

struct Evaluation {
  std::int64_t step = 0;
  double loss = 0;
  double accuracy = 0;
  double seconds = 0;           // of training, until then
  std::int64_t bytes_sent = 0;  // by rank 0, until then
};

// What is known at the end.
struct TrainOutcome {
  int workers = 1;
  std::string backend;
  std::int64_t parameters = 0;
  std::int64_t train_examples = 0, test_examples = 0;
  std::int64_t first_step = 0;  // where it was taken up
  std::vector<std::int64_t> bucket_bytes;
  report::Table errors = {};  // of the hook, by parameter; no columns: not measured
};

// One object in rank 0; other ranks have none.
class TrainOutput {
 public:
  // After a checkpoint of step `first_step` was loaded: metrics of later steps go.
  TrainOutput(const TrainOptions& options, const std::string& link,
              std::int64_t first_step);

  void introduce(const TrainOutcome& outcome, const TrainData& data);
  // After each step; `evaluation` where there was one.
  void step(StepPoint point, double lr, const std::optional<Evaluation>& evaluation);
  void evaluated(const Evaluation& evaluation);
  void saved(std::int64_t step) { saved_ = step; }
  // Saved because somebody wants an end.
  void interrupted(std::int64_t step);
  // Says and writes all that is left to be said. `series` lacks its points.
  void finish(Series series, const TrainOutcome& outcome);

 private:
  void take_up(std::int64_t first_step);
  void print_summary(const Series& series, const TrainOutcome& outcome);
  void write_files(const Series& series, const TrainOutcome& outcome);

  const TrainOptions& options_;
  Terminal terminal_;
  Series series_;  // its name and link
  History history_;
  std::vector<Evaluation> evaluations_;
  std::int64_t bytes_before_ = 0;
  double seconds_before_ = 0;
  std::optional<std::int64_t> saved_;
  std::unique_ptr<report::MetricsWriter> metrics_;
  std::unique_ptr<report::TensorBoardWriter> tensorboard_;
};

}  // namespace brigade::tool
