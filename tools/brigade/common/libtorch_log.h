// Limits what LibTorch writes to stderr by itself.
#pragma once
#include <c10/util/Logging.h>

#include <algorithm>
#include <cstdlib>

namespace brigade::tool {

// From here on LibTorch logs only errors that end the process, here and in forked
// processes. c10d warns of each connection that ends and of each host without a name, and
// NCCL's watcher reports each collective that fails, all with stack traces; Brigade's
// exceptions already say what a person must know. TORCH_CPP_LOG_LEVEL, where it is set,
// decides instead.
inline void quiet_libtorch_log() {
  constexpr int kFatal = 3;
  if (std::getenv("TORCH_CPP_LOG_LEVEL")) {
    c10::initLogging();
  } else {
    FLAGS_caffe2_log_level = std::max(FLAGS_caffe2_log_level, kFatal);
  }
}

}  // namespace brigade::tool
