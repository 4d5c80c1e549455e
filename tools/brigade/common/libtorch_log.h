// What LibTorch writes to stderr by itself.
#pragma once
#include <c10/util/Logging.h>

#include <algorithm>
#include <cstdlib>

namespace brigade::tool {

// From here on LibTorch logs errors only, in this process and in those that it forks.
// c10d warns of each connection that ends and of each host without a name, with a stack
// trace; what a person must know comes as an exception anyway. TORCH_CPP_LOG_LEVEL, where
// it is set, decides instead.
inline void log_only_errors_of_libtorch() {
  constexpr int kErrors = 2;
  if (std::getenv("TORCH_CPP_LOG_LEVEL")) {
    c10::initLogging();
  } else {
    FLAGS_caffe2_log_level = std::max(FLAGS_caffe2_log_level, kErrors);
  }
}

}  // namespace brigade::tool
