#include "common/json.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/atomic_file.h"
#include "brigade/error.h"
#include "common/options.h"

namespace brigade::tool {

void add_json_option(CLI::App& command, std::string& path) {
  command.add_option("--json", path, "write the results to this file as well")
      ->check(not_empty())
      ->type_name("FILE");
  // CLI11 runs this before the callback.
  command.parse_complete_callback([&path] {
    if (!path.empty()) base::check_output_file(path, "--json");
  });
}

void write_json(const std::string& path, const nlohmann::ordered_json& json) {
  if (path.empty()) return;
  base::write_whole(
      path,
      json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
}

Answers::Answers() : fd_(memfd_create("brigade answers", MFD_CLOEXEC)), owner_(getpid()) {
  if (fd_ < 0) throw Error(std::string("memfd_create: ") + std::strerror(errno));
}

Answers::~Answers() { close(fd_); }

std::string Answers::path() const {
  return "/proc/" + std::to_string(owner_) + "/fd/" + std::to_string(fd_);
}

void Answers::add(const nlohmann::json& answer) const {
  const std::string line = answer.dump() + "\n";
  // Opened anew: all processes share the position of an inherited descriptor.
  const int fd = open(path().c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
  const bool written =
      fd >= 0 && write(fd, line.data(), line.size()) == static_cast<ssize_t>(line.size());
  const int error = errno;
  if (fd >= 0) close(fd);
  if (!written) throw Error(std::string("cannot answer: ") + std::strerror(error));
}

std::vector<nlohmann::json> Answers::all() const {
  std::string text(static_cast<size_t>(lseek(fd_, 0, SEEK_END)), '\0');
  if (pread(fd_, text.data(), text.size(), 0) != static_cast<ssize_t>(text.size()))
    throw Error(std::string("cannot read the workers' answers: ") + std::strerror(errno));
  std::vector<nlohmann::json> answers;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    answers.push_back(nlohmann::json::parse(line, nullptr, false));
    if (answers.back().is_discarded())
      throw Error("a worker's answer is not JSON: " + line);
  }
  return answers;
}

}  // namespace brigade::tool
