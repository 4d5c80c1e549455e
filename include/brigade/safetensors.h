// Tensors in files: the safetensors format, as Python's `safetensors` reads and writes it,
// with checksums. Nothing in such a file is ever executed.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>

#include "brigade/error.h"

namespace brigade {

// A file, or what is in it, cannot be used. The text has the path, and says whether the
// file is missing, not of this format, truncated, corrupt, or does not fit; or what the
// system refused.
class CheckpointError : public Error {
 public:
  using Error::Error;
};

struct SafetensorsFile {
  std::map<std::string, at::Tensor> tensors;
  std::map<std::string, std::string> metadata;
};

enum class Checksums : std::uint8_t {
  if_present,  // also files that other programs wrote
  required,    // only files that save_safetensors wrote
};

// Writes PATH.partial, flushes it to the disk and renames it to PATH: whoever opens PATH,
// now or after a crash at any moment, finds the old file or the new one, whole. Two writers
// must not write the same path at once.
//
// Tensors of any device and layout in memory, stored dense in row-major order; every dtype
// that the format has, but for packed 4-bit floats. Throws ConfigError for a tensor, a name
// or metadata that the format cannot hold ("brigade.checksum" and "brigade.format" are
// names of its own), CheckpointError when the system refuses; then PATH is as it was.
void save_safetensors(const std::string& path, const SafetensorsFile& content);

// The whole file, on the CPU. Checks everything first: lengths, bounds, overlaps, holes,
// names, and checksums where the file has them. A file of save_safetensors in which any one
// byte was changed is refused in either mode. Throws CheckpointError.
SafetensorsFile load_safetensors(const std::string& path,
                                 Checksums checksums = Checksums::if_present);

}  // namespace brigade
