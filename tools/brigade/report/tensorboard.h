// TensorBoard's event files: scalars against steps.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/files/atomic_file.h"
#include "report/run_record.h"

namespace brigade::tool {

using Scalars = std::vector<std::pair<std::string_view, double>>;

// Files are a sequence of records: the length, its checksum, an Event in protobuf's
// encoding, its checksum. The first record says which version the file has.
std::string tensorboard_header(double wall_time);
std::string tensorboard_record(double wall_time, std::int64_t step, const Scalars& scalars);
// loss, accuracy, step_ms, bytes_sent and overlap of a whole series; `wall_time` is when it
// began, in seconds since 1970.
std::string tensorboard_text(const Series& series, double wall_time);

// Writes while training goes on. TensorBoard finds files whose name has "tfevents" in it.
class TensorBoardWriter {
 public:
  // Makes FOLDER/events.out.tfevents.SECONDS.HOST.PID, and the folder if need be.
  explicit TensorBoardWriter(const std::string& folder);
  void add(std::int64_t step, const Scalars& scalars);
  const std::string& path() const { return file_.path(); }

 private:
  base::RecordFile file_;
};

// The CRC-32C of Castagnoli.
std::uint32_t crc32c(std::string_view bytes);

}  // namespace brigade::tool
