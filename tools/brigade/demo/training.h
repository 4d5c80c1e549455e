// One training of the demo: a small network on the digits, under one hook.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "brigade/process_group.h"
#include "common/json.h"
#include "common/workers.h"
#include "train/data/data.h"

namespace brigade::tool {

struct DemoTraining {
  int steps = 0;
  int batch = 32;               // digits for each rank and step
  double learning_rate = 4e-3;  // falls to 0
  std::uint64_t seed = 1;
};

std::int64_t demo_parameters();
std::string demo_network();  // in words

// Trains a few steps at a time, so that several trainings can take turns and meet the same
// load of the machine.
class DigitTraining {
 public:
  // Collective, like all that follows. `worker` and `data` must outlive it.
  DigitTraining(const Worker& worker, const TrainData& data, const std::string& spec,
                const DemoTraining& training);
  ~DigitTraining();
  DigitTraining(const DigitTraining&) = delete;
  DigitTraining& operator=(const DigitTraining&) = delete;

  // Trains the next few steps and measures the accuracy in the last; rank 0 calls `watch`
  // after each. Returns false if all steps were done before.
  bool advance(const std::function<void()>& watch);
  // The points up to now; test_accuracy is the last one measured.
  const Series& series() const { return series_; }
  // The whole series, with the fingerprints and spans of all ranks. Called once.
  Series finish();

 private:
  class Trainer;
  const ProcessGroup& group_;
  const int steps_;
  std::unique_ptr<Trainer> trainer_;
  Series series_;
};

}  // namespace brigade::tool
