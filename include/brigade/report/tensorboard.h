// SPDX-License-Identifier: BSD-3-Clause
// TensorBoard's event files: scalars against steps.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "brigade/report/run_record.h"

namespace brigade::report {

// A name and a value each: {{"loss", 0.25}, {"lr", 1e-3}}.
using Scalars = std::vector<std::pair<std::string_view, double>>;

// Writes while training goes on; each record is there when add() returns. For one thread.
class BRIGADE_API TensorBoardWriter {
 public:
  // Makes FOLDER/events.out.tfevents.SECONDS.HOST.PID, and the folder if need be. Throws
  // Error, as add() does.
  explicit TensorBoardWriter(const std::string& folder);
  ~TensorBoardWriter();
  TensorBoardWriter(TensorBoardWriter&&) noexcept;
  TensorBoardWriter& operator=(TensorBoardWriter&&) noexcept;

  void add(std::int64_t step, const Scalars& scalars);
  const std::string& path() const;

 private:
  class File;
  std::unique_ptr<File> file_;
};

// A whole file: loss, accuracy, step_ms, bytes_sent and overlap of a series; `wall_time` is
// when it began, in seconds since 1970. TensorBoard finds files whose name has "tfevents"
// in it.
BRIGADE_API std::string tensorboard_text(const Series& series, double wall_time);

}  // namespace brigade::report
