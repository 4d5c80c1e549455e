// The job's folder: logs, if any are asked for, and error files.
#pragma once
#include <string>

#include "brigade/launch.h"

namespace brigade::launching {

// The folder is fresh and private, because its content decides what is reported. It is
// removed at the end unless it has logs, or the user chose where it is.
class JobFolder {
 public:
  // Throws ConfigError when it cannot be made.
  JobFolder(const LaunchOptions& options, std::string name);
  ~JobFolder();
  JobFolder(const JobFolder&) = delete;
  JobFolder& operator=(const JobFolder&) = delete;

  const std::string& path() const { return path_; }
  bool kept() const { return kept_; }

 private:
  std::string path_;
  bool kept_ = false;
};

}  // namespace brigade::launching
