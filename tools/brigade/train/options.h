// The options of brigade train.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "common/workers.h"
#include "train/model_options.h"

namespace brigade::tool {

struct TrainOptions {
  WorkerOptions workers;
  std::string data = "digits";
  ModelOptions model;
  std::string precision = "fp32";  // of forward and backward passes: fp32 or bf16
  std::string hook = "allreduce";
  std::string optimizer = "adamw:lr=0.002";
  bool optimizer_in_backward = false;
  std::int64_t diloco =
      0;  // steps between exchanges of parameters; 0: of gradients instead
  std::optional<double> outer_lr, outer_momentum;  // with diloco; else its defaults
  std::optional<double> lr;                        // else the optimizer's default
  std::string schedule = "constant";
  std::int64_t steps = 200;
  std::int64_t batch = 32;  // examples for each worker and step
  std::int64_t evaluate_every = 50;
  std::int64_t check_every = 100;  // steps between comparisons of replicas; 0: never
  std::uint64_t seed = 1;
  double bucket_mb = 0.25;
  std::string checkpoint;       // folder; empty: none
  std::int64_t save_every = 0;  // 0: at the end only
  bool resume = false;
  std::string out;  // folder of the report, the metrics, the trace and TensorBoard's events
  std::string json;
  std::string link;     // as given; empty: the network as it is
  int hosts = 0;        // on the link; 0: every worker is a host
  std::string command;  // the line that was typed
  bool elastic = false;
  std::string kill_at;   // STEP:WORKER, for brigade demo --kill; empty: none
  std::string replicas;  // file that gets a line with each worker's replica at the end
};

}  // namespace brigade::tool
