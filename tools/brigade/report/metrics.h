// metrics.jsonl: a line of JSON a step.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "base/files/atomic_file.h"
#include "report/run_record.h"

namespace brigade::tool {

// {"hook": "fp16", "link": "", "step": 1, "seconds": …, "step_ms": …, "loss": …,
//  "accuracy": …, "bytes_sent": …, "overlap": …}; accuracy only where it was measured.
std::string metrics_line(const Series& series, const StepPoint& point);
// All lines of all series.
std::string metrics_text(const RunRecord& record);

// Writes while training goes on; each line is there when add() returns.
class MetricsWriter {
 public:
  explicit MetricsWriter(std::string path, bool append = false)
      : file_(std::move(path), append) {}
  void add(const Series& series, const StepPoint& point) {
    file_.add(metrics_line(series, point));
  }
  // Any object, on a line of its own.
  void add(const nlohmann::json& line);

 private:
  base::RecordFile file_;
};

}  // namespace brigade::tool
