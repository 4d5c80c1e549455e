#include "launch/job_folder.h"

#include <string.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>

namespace brigade::launching {
namespace {

// An empty TMPDIR counts as none, as it does for mktemp and Python.
std::string temporary_folder() {
  const char* named = std::getenv("TMPDIR");
  return named && *named ? named : "/tmp";
}

}  // namespace

JobFolder::JobFolder(const LaunchOptions& options, std::string name) {
  const auto logs = [](const StreamChoice& choice) {
    return choice.all != Streams::none || !choice.by_local_rank.empty();
  };
  kept_ = !options.log_dir.empty() || logs(options.redirects) || logs(options.tee);
  std::string base = options.log_dir;
  if (base.empty()) base = temporary_folder();
  std::error_code failed;
  std::filesystem::create_directories(base, failed);
  std::ranges::replace(name, '/', '_');
  path_ = std::filesystem::absolute(base) / (name + "_XXXXXX");
  if (!mkdtemp(path_.data())) {
    throw ConfigError("cannot make a folder in '" + base + "': " + strerror(errno));
  }
}

JobFolder::~JobFolder() {
  std::error_code ignored;
  if (!kept_) std::filesystem::remove_all(path_, ignored);
}

}  // namespace brigade::launching
