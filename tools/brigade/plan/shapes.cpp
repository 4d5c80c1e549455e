#include "plan/shapes.h"

#include <algorithm>

#include "bench/reduction.h"
#include "brigade/error.h"
#include "checkpoint/format.h"

namespace brigade::tool {

namespace {

// A file that the user named and that cannot be used is the command line's fault.
auto header_of(const std::string& path) {
  try {
    return checkpoint::read_header(path, Checksums::if_present);
  } catch (const CheckpointError& error) {
    throw ConfigError(std::string("--model: ") + error.what());
  }
}

}  // namespace

ShapeList shapes_in(const std::string& path) {
  const auto header = header_of(path);
  const auto is_models = [](const auto& entry) { return entry.name.starts_with("model/"); };
  const bool ours = std::ranges::any_of(header.entries, is_models);
  ShapeList shapes;
  for (const auto& entry : header.entries) {
    if (!c10::isFloatingType(entry.dtype) || (ours && !is_models(entry))) continue;
    shapes.push_back(entry.shape);
  }
  if (shapes.empty())
    throw ConfigError("--model '" + path + "' has no floating-point tensor");
  return shapes;
}

ShapeList shapes_for(int64_t params) {
  // Matrices of 1024 x 1024, or fewer and larger ones: PowerSGD's bytes depend on it
  // little.
  constexpr int64_t kMost = 20'000;
  int64_t side = 1024;
  while (params / (side * side) > kMost) side *= 2;
  ShapeList shapes(static_cast<size_t>(params / (side * side)), {side, side});
  for (const auto& shape : shapes_of_size(4 * (params % (side * side)))) {
    shapes.push_back(shape);
  }
  return shapes;
}

}  // namespace brigade::tool
