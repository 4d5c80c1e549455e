// The job's folder: logs, if any are asked for, and error files.
#pragma once
#include <string>

#include "brigade/launch.h"

namespace brigade::launching {

// Fresh and private: what is in it decides what is reported. Removed at the end unless it
// has logs, or a place that the user chose.
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
