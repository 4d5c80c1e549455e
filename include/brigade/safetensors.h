// SPDX-License-Identifier: BSD-3-Clause
// Tensors in files: the safetensors format, as Python's `safetensors` reads and writes it,
// with checksums. Nothing in such a file is ever executed.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>

#include "brigade/error.h"
#include "brigade/export.h"

namespace brigade {

// A file or its content cannot be used. The text has the path, and says whether the file is
// missing, not of this format, truncated or corrupt, does not fit, or what the system
// refused. It is valid UTF-8, whatever bytes of the file it quotes.
class BRIGADE_API CheckpointError : public Error {
 public:
  explicit CheckpointError(const std::string& what);
};

struct SafetensorsFile {
  std::map<std::string, at::Tensor> tensors = {};
  std::map<std::string, std::string> metadata = {};
};

enum class Checksums : std::uint8_t {
  if_present,  // also files that other programs wrote
  required,    // only files that save_safetensors wrote
};

// Writes PATH.partial, flushes it to the disk and renames it to PATH. At any moment, also
// after a crash, PATH is the whole old file or the whole new one. Two writers must not
// write the same path at once.
//
// Tensors may have any device and layout in memory, and every dtype of the format except
// packed 4-bit floats. They are stored dense in row-major order. Throws ConfigError for a
// tensor, a name or metadata that the format cannot hold ("brigade.checksum" and
// "brigade.format" are reserved), and CheckpointError if the system refuses; PATH is then
// as it was.
BRIGADE_API void save_safetensors(const std::string& path, const SafetensorsFile& content);

// The whole file, on the CPU. Checks everything first: lengths, bounds, overlaps, holes,
// names, and checksums where the file has them. A file of save_safetensors in which any one
// byte was changed is refused in either mode. Throws CheckpointError.
BRIGADE_API SafetensorsFile load_safetensors(const std::string& path,
                                             Checksums checksums = Checksums::if_present);

}  // namespace brigade
