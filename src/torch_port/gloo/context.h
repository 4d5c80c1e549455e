// Declares the names of gloo that c10d/ProcessGroupGloo.hpp mentions. LibTorch's wheel
// ships that header and all of gloo's symbols, but none of gloo's own headers;
// ProcessGroupGloo keeps gloo's types behind pointers, so declarations are enough. Included
// by gloo_backend.cpp only.
#pragma once
#include <chrono>

namespace gloo {
class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
};
namespace transport {
class Device;
class UnboundBuffer;
}  // namespace transport
}  // namespace gloo
