// Shows tests of the engine its threads.
#pragma once
#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>

namespace brigade::testing {

// How long a test waits for an event that must come.
inline constexpr std::chrono::seconds kPatience{20};

// Whether a thread of this process serves the station.
inline bool served(int station) {
  const std::string wanted = "brigade-" + std::to_string(station);
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;
    std::getline(std::ifstream(task.path() / "comm"), name);
    if (name == wanted) return true;
  }
  return false;
}

}  // namespace brigade::testing
