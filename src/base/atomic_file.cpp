#include "base/atomic_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/signals.h"
#include "brigade/error.h"

namespace brigade::base {
namespace {

namespace fs = std::filesystem;

// Blocks SIGXFSZ, which ends a process when a file reaches its size limit: the write fails
// instead, and the file can be removed.
class SizeSignalHeldBack {
 public:
  SizeSignalHeldBack() : held_(only()) {}
  ~SizeSignalHeldBack() {
    const sigset_t signals = only();
    const timespec at_once{};
    if (too_large && !sigismember(&held_.mask_before(), SIGXFSZ))
      sigtimedwait(&signals, nullptr, &at_once);
  }
  bool too_large = false;

 private:
  static sigset_t only() {
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGXFSZ);
    return signals;
  }
  HeldBack held_;
};

// Returns 0 or errno.
int write_bytes(int fd, std::string_view bytes) {
  SizeSignalHeldBack held;
  constexpr std::size_t kMost = std::size_t{1} << 30;  // one call writes 2 GiB at most
  while (!bytes.empty()) {
    const ssize_t count = ::write(fd, bytes.data(), std::min(bytes.size(), kMost));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      const int error = count < 0 ? errno : ENOSPC;
      held.too_large = error == EFBIG;
      return error;
    }
    bytes.remove_prefix(static_cast<std::size_t>(count));
  }
  return 0;
}

std::string of_this_process() { return ".part" + std::to_string(getpid()); }

std::string folder_of(const std::string& path) {
  const std::string folder = fs::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}

std::string cannot(const char* doing, const std::string& path, int error) {
  return std::string("cannot ") + doing + " '" + path + "': " + std::strerror(error);
}

// A device or a pipe: renaming a file to its name would replace it.
bool is_special(const std::string& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  return fs::exists(status) && !fs::is_regular_file(status) && !fs::is_directory(status);
}

void write_special(const std::string& path, std::string_view text) {
  const int fd = open(path.c_str(), O_WRONLY | O_CLOEXEC);
  if (fd < 0) throw Error(cannot("write", path, errno));
  int error = write_bytes(fd, text);
  if (close(fd) != 0 && error == 0) error = errno;
  if (error) throw Error(cannot("write", path, error));
}

}  // namespace

AtomicFile::AtomicFile(std::string path, std::string_view beside)
    : path_(std::move(path)), partial_(path_ + std::string(beside)) {
  fd_ = open(partial_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd_ < 0) fail("create", errno);
}

AtomicFile::~AtomicFile() {
  if (fd_ >= 0) close(fd_);
  if (!committed_) unlink(partial_.c_str());
}

void AtomicFile::write(std::string_view bytes) {
  if (const int error = write_bytes(fd_, bytes)) fail("write", error);
}

void AtomicFile::commit() {
  // Some file systems report a failed write only here.
  if (close(std::exchange(fd_, -1)) != 0) fail("write", errno);
  if (rename(partial_.c_str(), path_.c_str()) != 0) fail("rename", errno);
  committed_ = true;
}

void AtomicFile::commit_to_disk() {
  if (fsync(fd_) != 0) fail("flush", errno);
  commit();
  flush_folder();
}

void AtomicFile::fail(const char* doing, int error) {
  // Called by the constructor too: the destructor does not run when that throws.
  if (fd_ >= 0) close(std::exchange(fd_, -1));
  unlink(partial_.c_str());
  throw Error(cannot(doing, path_, error) + "; nothing there has changed");
}

// The new name lasts only when the folder is on the disk as well.
void AtomicFile::flush_folder() const {
  const int fd = open(folder_of(path_).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const bool flushed = fd >= 0 && fsync(fd) == 0;
  const int error = errno;
  if (fd >= 0) close(fd);
  if (!flushed) {
    throw Error(cannot("flush the folder of", path_, error) +
                "; the new file is there, but may not outlive a power cut");
  }
}

void check_output_folder(const std::string& folder, std::string_view flag) {
  const auto fail = [&](const std::string& why) {
    throw ConfigError(std::string(flag) + ": cannot write into '" + folder + "': " + why);
  };
  const HeldBack held(ending_signals());
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) fail(error.message());
  const std::string probe = folder + "/probe" + of_this_process();
  // It may exist: from a killed process with this number, or from another host.
  const int fd = open(probe.c_str(), O_CREAT | O_NOFOLLOW | O_WRONLY | O_CLOEXEC, 0600);
  if (fd < 0) fail(std::strerror(errno));
  close(fd);
  unlink(probe.c_str());
}

void check_output_file(const std::string& path, std::string_view flag) {
  if (path.empty() || path.ends_with('/') || fs::is_directory(path)) {
    throw ConfigError(std::string(flag) + ": '" + path + "' is no name for a file");
  }
  if (access(path.c_str(), F_OK) == 0 && access(path.c_str(), W_OK) != 0) {
    throw ConfigError(std::string(flag) + ": " + cannot("write", path, errno));
  }
  if (is_special(path)) return;
  check_output_folder(folder_of(path), flag);
}

void write_whole(const std::string& path, std::string_view text) {
  const HeldBack held(ending_signals());
  if (is_special(path)) return write_special(path, text);
  AtomicFile file(path, of_this_process());
  file.write(text);
  file.commit();
}

RecordFile::RecordFile(std::string path, bool append) : path_(std::move(path)) {
  const int mode = O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC | (append ? 0 : O_TRUNC);
  fd_ = open(path_.c_str(), mode, 0644);
  if (fd_ < 0) throw Error(cannot("write", path_, errno));
}

RecordFile::~RecordFile() { close(fd_); }

void RecordFile::add(std::string_view record) {
  const HeldBack held(ending_signals());
  const off_t before = lseek(fd_, 0, SEEK_END);
  const int error = write_bytes(fd_, record);
  if (error == 0) return;
  if (before >= 0 && ftruncate(fd_, before) != 0) {
    throw Error(cannot("write", path_, error) + "; its last record is not complete");
  }
  throw Error(cannot("write", path_, error));
}

}  // namespace brigade::base
