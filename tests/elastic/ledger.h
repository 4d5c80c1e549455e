// Records on disk which process trained which rows in which pass, so that passes of dead
// processes count too.
//
// A *pass* is one call of step() with the rows that were assigned to it. It is done when
// step() returns true. A step that fails, or that no survivor has done, is tried again in a
// later generation. So the passes of a step that count, on all ranks, are those of the last
// generation in which some rank has done it; the others are lost.
//
// FOLDER/ledger.PID: "start MS", "pass GENERATION STEP EPOCH MS SIZE ROWS…", "done
// GENERATION STEP MS". All processes use the same clock.
#pragma once
#include <ATen/core/Tensor.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace elastic_ledger {

inline int64_t now_ms() {  // of one clock for all processes of this machine
  using std::chrono::steady_clock;
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             steady_clock::now().time_since_epoch())
      .count();
}

// When the kernel started this process, which is before its libraries were loaded.
inline int64_t started_ms() {
  std::ifstream file("/proc/self/stat");
  std::string text;
  std::getline(file, text);
  std::istringstream words(text.substr(text.rfind(')') + 2));
  std::string word;
  for (int field = 3; field < 22; ++field) words >> word;
  int64_t ticks = 0;
  words >> ticks;
  timespec since_boot{};
  clock_gettime(CLOCK_BOOTTIME, &since_boot);
  const int64_t age = since_boot.tv_sec * 1000 + since_boot.tv_nsec / 1'000'000 -
                      ticks * 1000 / sysconf(_SC_CLK_TCK);
  return now_ms() - age;
}

// Each line is one write: a process that is killed leaves whole lines, and perhaps the
// beginning of one.
class Ledger {
 public:
  explicit Ledger(const std::string& folder)
      : file_(open((folder + "/ledger." + std::to_string(getpid())).c_str(),
                   O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0600)) {
    put("start " + std::to_string(started_ms()));
  }
  ~Ledger() { close(file_); }
  Ledger(const Ledger&) = delete;
  Ledger& operator=(const Ledger&) = delete;

  void begin(int generation, int64_t step, int64_t epoch, int size,
             const at::Tensor& rows) {
    std::ostringstream line;
    line << "pass " << generation << ' ' << step << ' ' << epoch << ' ' << now_ms() << ' '
         << size;
    for (int64_t i = 0; i < rows.numel(); ++i) line << ' ' << rows[i].item<int64_t>();
    put(line.str());
  }
  void done(int generation, int64_t step) {
    put("done " + std::to_string(generation) + " " + std::to_string(step) + " " +
        std::to_string(now_ms()));
  }

 private:
  void put(std::string line) {
    line += '\n';
    if (write(file_, line.data(), line.size()) != static_cast<ssize_t>(line.size()))
      throw std::runtime_error("cannot write the ledger");
  }
  int file_;
};

struct Pass {
  int generation = 0;
  int64_t step = 0, epoch = 0;
  int size = 0;
  std::vector<int64_t> rows;
};

// The ledgers of all processes of a finished job.
class Books {
 public:
  explicit Books(const std::string& folder) {
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      if (entry.path().filename().string().starts_with("ledger.")) read(entry.path());
    }
  }

  // Whether every sample was trained once in each of the first `epochs` epochs, and at most
  // once in a later one.
  bool every_sample_once(int64_t samples, int64_t epochs) const {
    std::map<int64_t, std::vector<int>> counts;  // by epoch, of each sample
    for (int64_t epoch = 0; epoch < epochs; ++epoch)
      counts[epoch].resize(static_cast<size_t>(samples));
    std::map<int64_t, int> missing;  // by step: ranks that have no pass
    for (const auto& passes : passes_) {
      for (const Pass& pass : passes) {
        if (!counts_for_its_step(pass)) continue;
        const auto [ranks, first] = missing.try_emplace(pass.step, pass.size);
        --ranks->second;
        auto& epoch = counts[pass.epoch];
        epoch.resize(static_cast<size_t>(samples));
        for (const int64_t row : pass.rows) ++epoch.at(static_cast<size_t>(row));
      }
    }
    for (const auto& [step, ranks] : missing)
      if (ranks != 0) return false;
    for (const auto& [epoch, of_samples] : counts)
      for (const int count : of_samples)
        if (count > 1 || (epoch < epochs && count == 0)) return false;
    return true;
  }

  // The largest number of passes that a survivor of a generation has begun in it and lost.
  int64_t most_lost() const {
    int last = 0;
    for (const auto& passes : passes_)
      for (const Pass& pass : passes) last = std::max(last, pass.generation);
    int64_t most = 0;
    for (const auto& passes : passes_) {
      std::map<int, int64_t> lost;  // by generation
      for (const Pass& pass : passes) lost[pass.generation] += !counts_for_its_step(pass);
      // A process that died in a generation has no later pass.
      if (!lost.empty() && lost.rbegin()->first != last) lost.erase(lost.rbegin()->first);
      for (const auto& [generation, count] : lost) most = std::max(most, count);
    }
    return most;
  }

 private:
  void read(const std::filesystem::path& path) {
    std::ifstream file(path);
    std::vector<Pass>& passes = passes_.emplace_back();
    for (std::string line; std::getline(file, line) && !file.eof();) {
      std::istringstream words(line);
      std::string what;
      Pass pass;
      int64_t ms = 0;
      words >> what >> pass.generation >> pass.step;
      if (what == "done")
        done_in_[pass.step] = std::max(done_in_[pass.step], pass.generation);
      if (what != "pass") continue;
      words >> pass.epoch >> ms >> pass.size;
      for (int64_t row = 0; words >> row;) pass.rows.push_back(row);
      passes.push_back(std::move(pass));
    }
  }
  bool counts_for_its_step(const Pass& pass) const {
    const auto found = done_in_.find(pass.step);
    return found != done_in_.end() && found->second == pass.generation;
  }

  std::vector<std::vector<Pass>> passes_;  // by process
  std::map<int64_t, int> done_in_;         // by step: the last generation that did it
};

}  // namespace elastic_ledger
