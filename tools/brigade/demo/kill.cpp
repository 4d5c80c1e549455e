#include "demo/kill.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>

#include "base/atomic_file.h"
#include "brigade/error.h"
#include "brigade/hooks.h"
#include "brigade/launch.h"

namespace brigade::tool {
namespace {

constexpr int kWorkers = 3;

// A fresh file, removed at the end.
class ScratchFile {
 public:
  ScratchFile() : path_(std::filesystem::temp_directory_path() / "brigade_XXXXXX") {
    const int fd = mkstemp(path_.data());
    if (fd < 0) throw Error("cannot make the file " + path_ + ": " + std::strerror(errno));
    close(fd);
  }
  ~ScratchFile() { unlink(path_.c_str()); }
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace

void demo_kill(const std::vector<std::string>& hooks, const std::string& out) {
  if (hooks.size() > 1) throw ConfigError("--kill goes with one --hook");
  const std::string hook = hooks.empty() ? "allreduce" : hooks[0];
  make_hook(hook);  // throws for an unknown one
  base::check_output_folder(out, "--out");
  std::printf(
      "Three workers train one network on handwritten digits. After 400 steps one kills "
      "itself.\n");
  std::fflush(stdout);
  const ScratchFile scratch;
  LaunchOptions options;
  options.elastic = ElasticLaunch{.replace = true};
  options.max_restarts = 10;
  options.prefix = false;
  launch(kWorkers,
         {"/proc/self/exe", "train", "--elastic", "-n", std::to_string(kWorkers), "--hook",
          hook, "--kill-at", "400:1", "--evaluate-every", "200", "--replicas",
          scratch.path(), "--out", out},
         options);
  std::multiset<std::string> replicas;
  std::ifstream file(scratch.path());
  for (std::string line; std::getline(file, line);) replicas.insert(line);
  if (replicas.size() != kWorkers)
    throw Error("the training ended with " + std::to_string(replicas.size()) + " of " +
                std::to_string(kWorkers) + " workers");
  if (replicas.count(*replicas.begin()) != replicas.size())
    throw Error("the workers' replicas differ");
  std::printf(
      "All %d replicas are identical, the replacement's too.\nThe curve, with its "
      "generations: %s/report.html\n",
      kWorkers, out.c_str());
}

}  // namespace brigade::tool
