// SPDX-License-Identifier: BSD-3-Clause
// metrics.jsonl: a line of JSON a step.
#pragma once
#include <memory>
#include <string>

#include "brigade/report/run_record.h"

namespace brigade::report {

// {"hook": "fp16", "link": "", "step": 1, "seconds": …, "step_ms": …, "loss": …,
//  "accuracy": …, "bytes_sent": …, "overlap": …}; accuracy only where it was measured; a
// loss that is no number is null.
BRIGADE_API std::string metrics_line(const Series& series, const StepPoint& point);
// All lines of all series.
BRIGADE_API std::string metrics_text(const RunRecord& record);

// Writes while training goes on; each line is there when add() returns. For one thread.
class BRIGADE_API MetricsWriter {
 public:
  // `append`: goes on behind what is there. Throws Error, as add() does.
  explicit MetricsWriter(std::string path, bool append = false);
  ~MetricsWriter();
  MetricsWriter(MetricsWriter&&) noexcept;
  MetricsWriter& operator=(MetricsWriter&&) noexcept;

  void add(const Series& series, const StepPoint& point);

 private:
  class File;
  std::unique_ptr<File> file_;
};

}  // namespace brigade::report
