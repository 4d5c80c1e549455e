// Kills workers of elastic_trainer: at random moments, or at chosen points.
#pragma once
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "brigade/elastic.h"
#include "elastic/ledger.h"

namespace elastic_reaper {

namespace fs = std::filesystem;

// Ends this process, unless no other would have the state, or enough have died.
class Reaper {
 public:
  Reaper(std::string folder, int64_t kills) : folder_(std::move(folder)), kills_(kills) {}

  // The lock goes with this process, however it ends.
  void holds_state() {
    if (holder_ >= 0) return;
    holder_ = open(mine().c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
    flock(holder_, LOCK_EX);
  }
  void die(const std::string& where) {
    // A chosen death waits for ranks that are a little behind. During a state transfer they
    // are not, and a rank that is alone stays so until it has sent.
    const bool waits = where != "anywhere" && where != "save" && where != "send";
    for (int tries = 0; waits && others() == 0 && deaths() < kills_ && tries < 1000;
         ++tries)
      usleep(5'000);
    const int lock = open((folder_ + "/lock").c_str(), O_CREAT | O_RDWR, 0600);
    flock(lock, LOCK_EX);  // given back by this process's end
    if (others() > 0 && deaths() < kills_ && !retired_) {
      std::ofstream(folder_ + "/deaths", std::ios::app)
          << elastic_ledger::now_ms() << ' ' << getpid() << ' ' << where << ' '
          << generation() << std::endl;
      fs::remove(mine());
      raise(SIGKILL);
    }
    close(lock);
  }
  // The job's generation is recorded with a death. This does not keep it alive.
  void belongs_to(const brigade::ElasticJob& job) { job_ = job.state(); }
  // Towards the end nobody dies any more, because a replacement would come too late.
  void retire() { retired_ = true; }
  void run(double mean_ms) {
    std::thread([this, mean_ms] {
      std::mt19937 random(std::random_device{}());
      std::exponential_distribution<double> delay(1 / mean_ms);
      while (true) {
        usleep(static_cast<useconds_t>(1000 * delay(random)));
        die("anywhere");
      }
    }).detach();
  }

 private:
  std::string mine() const { return folder_ + "/holder." + std::to_string(getpid()); }
  int others() const {
    int count = 0;
    for (const auto& entry : fs::directory_iterator(folder_)) {
      const std::string name = entry.path().filename();
      if (!name.starts_with("holder.")) continue;
      const int file = open(entry.path().c_str(), O_RDWR | O_CLOEXEC);
      count += file >= 0 && entry.path() != mine() && flock(file, LOCK_EX | LOCK_NB) != 0;
      close(file);
    }
    return count;
  }
  int generation() const {
    const auto job = job_.lock();
    return job ? brigade::ElasticJob(job).generation() : -1;
  }
  int64_t deaths() const {
    std::ifstream file(folder_ + "/deaths");
    int64_t count = 0;
    for (std::string line; std::getline(file, line);) ++count;
    return count;
  }

  const std::string folder_;
  const int64_t kills_;
  int holder_ = -1;
  std::weak_ptr<brigade::ElasticJob::State> job_;
  std::atomic<bool> retired_ = false;
};

// at=WHERE:STEP:RANK, several with commas: dies there.
class Appointments {
 public:
  explicit Appointments(const std::string& text) {
    std::istringstream all(text);
    for (std::string one; std::getline(all, one, ',');) {
      std::istringstream parts(one);
      std::string where, step, rank;
      std::getline(parts, where, ':');
      std::getline(parts, step, ':');
      std::getline(parts, rank, ':');
      wanted_.push_back({where, std::stoll(step), std::stoi(rank)});
    }
  }
  // The same, from that step on.
  bool due(const std::string& where, int64_t step, int rank) const {
    for (int64_t at = 0; at <= step; ++at)
      if (has(where, at, rank)) return true;
    return false;
  }
  bool has(const std::string& where, int64_t step, int rank) const {
    for (const auto& [place, at, who] : wanted_)
      if (place == where && at == step && who == rank) return true;
    return false;
  }

 private:
  std::vector<std::tuple<std::string, int64_t, int>> wanted_;
};

}  // namespace elastic_reaper
