#include "json_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "brigade/error.h"

namespace brigade::tool {
namespace {

// A device or a pipe is written to as it is: renaming would replace it.
bool is_special(const std::string& path) {
  struct stat info {};
  return stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode);
}

// Gives errno, 0 when all of the text is on the disk.
int write_all(int fd, const std::string& text) {
  for (size_t done = 0; done < text.size();) {
    const ssize_t count = write(fd, text.data() + done, text.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return errno;
    done += static_cast<size_t>(count);
  }
  return fsync(fd) == 0 || errno == EINVAL || errno == EROFS ? 0 : errno;
}

}  // namespace

void check_writable(const std::string& flag, const std::string& path) {
  const auto refuse = [&](int error) {
    throw ConfigError(flag + ": cannot write '" + path + "': " + std::strerror(error));
  };
  struct stat info {};
  if (stat(path.c_str(), &info) == 0) {
    if (S_ISDIR(info.st_mode)) refuse(EISDIR);
    if (access(path.c_str(), W_OK) != 0) refuse(errno);
  }
  if (is_special(path)) return;
  const std::string trial = path + ".partial";
  const int fd = open(trial.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) refuse(errno);
  close(fd);
  unlink(trial.c_str());
}

void add_json_option(CLI::App& command, std::string& path) {
  command.add_option("--json", path, "write the results to this file as well")
      ->type_name("FILE");
  // CLI11 runs it before the callback.
  command.parse_complete_callback([&path] {
    if (!path.empty()) check_writable("--json", path);
  });
}

void write_json(const std::string& path, const nlohmann::ordered_json& json) {
  if (path.empty()) return;
  const bool special = is_special(path);
  const std::string target = special ? path : path + ".partial";
  const int fd = open(target.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  const std::string text =
      json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
  int error = fd < 0 ? errno : write_all(fd, text);
  if (fd >= 0 && close(fd) != 0 && !error) error = errno;
  if (!error && !special && rename(target.c_str(), path.c_str()) != 0) error = errno;
  if (!error) return;
  if (!special) unlink(target.c_str());
  throw Error("--json: cannot write '" + path + "': " + std::strerror(error));
}

}  // namespace brigade::tool
