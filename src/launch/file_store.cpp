#include "launch/file_store.h"

#include <c10/util/Exception.h>
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <optional>
#include <thread>

#include "brigade/error.h"

namespace brigade::launching {
namespace {

using namespace std::chrono_literals;

const char* const kLock = "/lock";
const char* const kStore = "/store-";

[[noreturn]] void refuse(const std::string& folder, const std::string& why) {
  throw RendezvousError("cannot meet at file://" + folder + ": " + why);
}

// Whether the folder is there; refuses one that others could write to.
bool check_folder(const std::string& folder) {
  struct stat info {};
  if (lstat(folder.c_str(), &info) != 0) {
    if (errno == ENOENT) return false;
    refuse(folder, std::strerror(errno));
  }
  if (!S_ISDIR(info.st_mode)) {
    refuse(folder, "it exists and is no folder; expected a path that is free");
  }
  if (info.st_uid != geteuid() || (info.st_mode & 077)) {
    refuse(folder, "the folder is open to others; expected a path that is free");
  }
  return true;
}

// Removes the stores of earlier runs; refuses a folder with anything else in it.
void clear(const std::string& folder) {
  DIR* list = opendir(folder.c_str());
  if (!list) refuse(folder, std::strerror(errno));
  std::string foreign;
  while (dirent* entry = readdir(list)) {
    const std::string name = std::string("/") + entry->d_name;
    if (name == "/." || name == "/.." || name == kLock) continue;
    if (name.rfind(kStore, 0) == 0) {
      unlink((folder + name).c_str());
    } else {
      foreign = entry->d_name;
    }
  }
  closedir(list);
  if (!foreign.empty()) {
    refuse(folder,
           "'" + foreign + "' in it is not of brigade's making; expected a free path");
  }
}

// Locks of the open file, not of the process: two threads exclude each other too.
struct flock whole_file(short type) {
  struct flock lock {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  return lock;
}

// Asks without taking the lock, so that a reader cannot keep rank 0 out.
bool is_locked(int file) {
  struct flock lock = whole_file(F_RDLCK);
  return fcntl(file, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

std::string fresh_name() {
  auto now = std::chrono::system_clock::now().time_since_epoch().count();
  return kStore + std::to_string(now) + "-" + std::to_string(getpid());
}

}  // namespace

FileMeeting::FileMeeting(std::string folder, int rank, Deadline deadline)
    : folder_(std::move(folder)) {
  if (rank == 0) {
    host();
    return;
  }
  while (!try_join()) {
    if (std::chrono::steady_clock::now() >= deadline) {
      refuse(folder_, "rank 0 did not come in time");
    }
    std::this_thread::sleep_for(10ms);
  }
}

FileMeeting::~FileMeeting() {
  if (lock_ >= 0) {
    unlink((folder_ + kLock).c_str());
    close(lock_);
  }
  rmdir(folder_.c_str());  // succeeds for the last one
}

void FileMeeting::host() {
  if (!check_folder(folder_) && mkdir(folder_.c_str(), 0700) != 0) {
    refuse(folder_, std::strerror(errno));
  }
  lock_ = open((folder_ + kLock).c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (lock_ < 0) refuse(folder_, std::strerror(errno));
  struct flock exclusive = whole_file(F_WRLCK);
  if (fcntl(lock_, F_OFD_SETLK, &exclusive) != 0) {
    close(std::exchange(lock_, -1));
    refuse(folder_, "another run is using it; expected a path of its own for each run");
  }
  try {
    if (ftruncate(lock_, 0) != 0) refuse(folder_, std::strerror(errno));
    clear(folder_);
  } catch (...) {
    close(std::exchange(lock_, -1));
    throw;
  }
  const std::string name = fresh_name();
  store_file_ = folder_ + name;
  // The newline tells readers that the name is whole.
  const std::string line = name + "\n";
  if (write(lock_, line.data(), line.size()) < 0) refuse(folder_, std::strerror(errno));
}

bool FileMeeting::try_join() {
  if (!check_folder(folder_)) return false;
  int file = open((folder_ + kLock).c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (file < 0) return false;
  char text[256];
  ssize_t count = -1;
  if (is_locked(file)) count = read(file, text, sizeof text);
  close(file);
  if (count < 2 || text[count - 1] != '\n') return false;
  store_file_ = folder_ + std::string(text, static_cast<std::size_t>(count) - 1);
  return true;
}

c10::intrusive_ptr<c10d::Store> PunctualFileStore::clone() {
  return c10::make_intrusive<PunctualFileStore>(path_, numWorkers_);
}

std::vector<uint8_t> PunctualFileStore::get(const std::string& key) {
  wait({key});
  return FileStore::get(key);
}

void PunctualFileStore::wait(const std::vector<std::string>& keys) { wait(keys, timeout_); }

void PunctualFileStore::wait(const std::vector<std::string>& keys,
                             const std::chrono::milliseconds& timeout) {
  const Deadline deadline = std::chrono::steady_clock::now() + timeout;
  while (!check(keys)) {
    if (std::chrono::steady_clock::now() >= deadline) {
      C10_THROW_ERROR(DistStoreError, "timed out waiting for a key in " + path_);
    }
    std::this_thread::sleep_for(5ms);
  }
}

}  // namespace brigade::launching
