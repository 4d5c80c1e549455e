// What workers tell the process that started them.
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace brigade::tool {

// Lines of JSON from workers to the process that started them, through memory: no file that
// could be left behind. Workers, forked or started as programs, append to path().
class Answers {
 public:
  Answers();
  ~Answers();
  Answers(const Answers&) = delete;
  Answers& operator=(const Answers&) = delete;

  std::string path() const;  // good while this process lives
  void add(const nlohmann::json& answer) const;
  // All so far. A line that is not JSON is an Error.
  std::vector<nlohmann::json> all() const;

 private:
  int fd_ = -1;
  int owner_ = 0;
};

}  // namespace brigade::tool
