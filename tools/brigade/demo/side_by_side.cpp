#include "demo/side_by_side.h"

#include <ATen/Parallel.h>

#include <memory>

#include "common/json.h"
#include "common/options.h"
#include "common/shaped_link.h"
#include "demo/print.h"
#include "report/run_record.h"

namespace brigade::tool {
namespace {

// A process's first steps cost extra, which is no hook's fault.
void warm_up(const Worker& worker, const TrainData& data, DemoTraining training) {
  training.steps = 4;
  DigitTraining some(worker, data, "allreduce", training);
  some.advance([] {});
}

std::vector<std::pair<std::string, std::string>> setup_of(const TrainData& data) {
  return {
      {"network", demo_network()},
      {"parameters", readable(static_cast<double>(demo_parameters()))},
      {"digits", readable(static_cast<double>(data.train.labels.size())) + " to train, " +
                     std::to_string(data.test.labels.size()) + " to test"},
      {"threads a rank", std::to_string(at::get_num_threads())}};
}

// Runs in a worker.
RunRecord train_all(const Worker& worker, const TrainData& data,
                    const std::vector<std::string>& hooks, const DemoTraining& training,
                    const std::string& link) {
  warm_up(worker, data, training);
  Board board(worker.group.rank() == 0, training.steps);
  std::vector<std::unique_ptr<DigitTraining>> all;
  for (const std::string& spec : hooks) {
    all.push_back(std::make_unique<DigitTraining>(worker, data, spec, training));
    board.set(all.size() - 1, all.back()->series());
  }
  for (bool more = true; more;) {
    for (std::size_t i = 0; i < all.size(); ++i) {
      more = all[i]->advance([&] {
        board.set(i, all[i]->series());
        board.draw();
      });
    }
  }
  RunRecord record;
  record.setup = setup_of(data);
  for (std::size_t i = 0; i < all.size(); ++i) {
    record.series.push_back(all[i]->finish());
    record.series.back().link = link;
    board.set(i, record.series.back());
  }
  board.close();
  return record;
}

}  // namespace

RunRecord train_side_by_side(const WorkerOptions& workers,
                             const std::vector<std::string>& hooks,
                             const DemoTraining& training) {
  const TrainData data = load_data("digits");
  const std::string link = workers.link ? workers.link->rate() : "";
  const Answers answers;
  run_workers(workers, [&](const Worker& worker) {
    const RunRecord record = train_all(worker, data, hooks, training, link);
    if (worker.group.rank() == 0) answers.add(to_json(record));
  });
  return report::record_from_json(answers.all().at(0));
}

}  // namespace brigade::tool
