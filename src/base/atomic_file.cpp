#include "base/atomic_file.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "brigade/error.h"

namespace brigade::base {
namespace {

namespace fs = std::filesystem;

// Holds back what would end the process between making a file and giving it its name.
class SignalsWait {
 public:
  SignalsWait() {
    sigset_t ending;
    sigemptyset(&ending);
    for (int number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) sigaddset(&ending, number);
    pthread_sigmask(SIG_BLOCK, &ending, &before_);
  }
  ~SignalsWait() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsWait(const SignalsWait&) = delete;
  SignalsWait& operator=(const SignalsWait&) = delete;

 private:
  sigset_t before_;
};

// 0, or what went wrong.
int write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t count = write(fd, text.data(), text.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return count < 0 ? errno : ENOSPC;
    text.remove_prefix(static_cast<std::size_t>(count));
  }
  return 0;
}

std::string beside(const std::string& path) {
  return path + ".part" + std::to_string(getpid());
}

std::string cannot_write(const std::string& path, int error) {
  return "cannot write '" + path + "': " + std::strerror(error);
}

// A device or a pipe: renaming a file to its name would replace it.
bool is_special(const std::string& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  return fs::exists(status) && !fs::is_regular_file(status) && !fs::is_directory(status);
}

}  // namespace

void check_output_folder(const std::string& folder, std::string_view flag) {
  const auto fail = [&](const std::string& why) {
    throw ConfigError(std::string(flag) + ": cannot write into '" + folder + "': " + why);
  };
  const SignalsWait wait;
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) fail(error.message());
  const std::string probe = beside(folder + "/probe");
  const int fd = open(probe.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
  if (fd < 0) fail(std::strerror(errno));
  close(fd);
  unlink(probe.c_str());
}

void check_output_file(const std::string& path, std::string_view flag) {
  if (path.empty() || path.ends_with('/') || fs::is_directory(path)) {
    throw ConfigError(std::string(flag) + ": '" + path + "' is no name for a file");
  }
  if (access(path.c_str(), F_OK) == 0 && access(path.c_str(), W_OK) != 0) {
    throw ConfigError(std::string(flag) + ": " + cannot_write(path, errno));
  }
  if (is_special(path)) return;
  const std::string folder = fs::path(path).parent_path().string();
  check_output_folder(folder.empty() ? "." : folder, flag);
}

void write_whole(const std::string& path, std::string_view text) {
  const SignalsWait wait;
  const bool special = is_special(path);
  const std::string part = special ? path : beside(path);
  const int fd = open(part.c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0644);
  if (fd < 0) throw Error(cannot_write(path, errno));
  int error = write_all(fd, text);
  if (close(fd) != 0 && error == 0) error = errno;  // some file systems notice only now
  if (error == 0 && !special && rename(part.c_str(), path.c_str()) != 0) error = errno;
  if (error == 0) return;
  if (!special) unlink(part.c_str());
  throw Error(cannot_write(path, error));
}

RecordFile::RecordFile(std::string path, bool append) : path_(std::move(path)) {
  const int mode = O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC | (append ? 0 : O_TRUNC);
  fd_ = open(path_.c_str(), mode, 0644);
  if (fd_ < 0) throw Error(cannot_write(path_, errno));
}

RecordFile::~RecordFile() { close(fd_); }

void RecordFile::add(std::string_view record) {
  const SignalsWait wait;
  const off_t before = lseek(fd_, 0, SEEK_END);
  const int error = write_all(fd_, record);
  if (error == 0) return;
  if (before >= 0 && ftruncate(fd_, before) != 0) {
    throw Error(cannot_write(path_, error) + "; its last record is not complete");
  }
  throw Error(cannot_write(path_, error));
}

}  // namespace brigade::base
