// The records of TensorBoard's event files.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "brigade/report.h"

namespace brigade::report {

// A file is a sequence of records: the length, its checksum, an Event in protobuf's
// encoding, its checksum. The first record holds the file's version.
std::string tensorboard_header(double wall_time);
std::string tensorboard_record(double wall_time, std::int64_t step, const Scalars& scalars);

// Computes the CRC-32C of Castagnoli.
std::uint32_t crc32c(std::string_view bytes);

}  // namespace brigade::report
