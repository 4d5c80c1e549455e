// Prints brigade train's progress and result, and writes its JSON. The files of --out are
// written by a TrainingLog.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "brigade/report.h"
#include "common/json.h"
#include "common/terminal.h"
#include "report/history.h"
#include "train/options.h"

namespace brigade::tool {

struct Evaluation {
  std::int64_t step = 0;
  double loss = 0;
  double accuracy = 0;
  double seconds = 0;           // of training, until then
  std::int64_t bytes_sent = 0;  // by rank 0, until then
};

// The facts that are known at the end.
struct TrainOutcome {
  int workers = 1;
  std::string backend;
  std::int64_t parameters = 0;
  std::int64_t train_examples = 0, test_examples = 0;
  std::int64_t first_step = 0;  // where it was resumed
  std::vector<std::int64_t> bucket_bytes;
};

// "1,234 parameters", "1 worker".
std::string plural(std::int64_t count, const std::string& what);

// Rank 0 has one; other ranks have none.
class TrainOutput {
 public:
  explicit TrainOutput(const TrainOptions& options) : options_(options) {}

  void introduce(const TrainOutcome& outcome, const TrainData& data);
  // Called after each step; `evaluation` is given after steps that had one.
  void step(const StepPoint& point, double lr, const std::optional<Evaluation>& evaluation);
  void evaluated(const Evaluation& evaluation);
  void saved(std::int64_t step) { saved_ = step; }
  // Says that the run was saved because of a signal.
  void interrupted(std::int64_t step);
  // Prints and writes the results. `series` has no points if no log has kept them.
  void finish(Series series, const TrainOutcome& outcome);

 private:
  void print_summary(const Series& series, const TrainOutcome& outcome);
  void write_result(const Series& series, const TrainOutcome& outcome) const;

  const TrainOptions& options_;
  Terminal terminal_;
  report::History history_;  // of this run
  std::vector<Evaluation> evaluations_;
  std::optional<std::int64_t> saved_;
};

}  // namespace brigade::tool
