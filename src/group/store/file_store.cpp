#include "group/store/file_store.h"

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

namespace brigade::group {
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

// Two bytes of the lock file, locked for the open file and not for the process: two threads
// exclude each other too. Rank 0 holds the first; all who are at the meeting share the
// second, so that whoever can have it alone is the last.
enum LockedByte : off_t { kHost, kMembers };

struct flock lock_of(LockedByte byte, short type) {
  struct flock lock {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = byte;
  lock.l_len = 1;
  return lock;
}

// F_RDLCK shares, F_WRLCK has alone, F_UNLCK lets go; changes atomically between them.
bool try_lock(int file, LockedByte byte, short type) {
  struct flock lock = lock_of(byte, type);
  return fcntl(file, F_OFD_SETLK, &lock) == 0;
}

// Asks without taking the lock.
bool is_locked(int file, LockedByte byte) {
  struct flock lock = lock_of(byte, F_RDLCK);
  return fcntl(file, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

// Whether the file still has a name: the last of an earlier meeting may just have gone.
bool is_linked(int file) {
  struct stat info {};
  return fstat(file, &info) == 0 && info.st_nlink > 0;
}

std::string fresh_name() {
  auto now = std::chrono::system_clock::now().time_since_epoch().count();
  return kStore + std::to_string(now) + "-" + std::to_string(getpid());
}

}  // namespace

FileMeeting::FileMeeting(std::string folder, int rank, Deadline deadline)
    : folder_(std::move(folder)) {
  while (!(rank == 0 ? try_host() : try_join())) {
    if (std::chrono::steady_clock::now() >= deadline) {
      refuse(folder_, rank == 0 ? "another run has not left it in time"
                                : "rank 0 did not come in time");
    }
    std::this_thread::sleep_for(10ms);
  }
}

FileMeeting::~FileMeeting() { leave(); }

void FileMeeting::leave() {
  // Lets go before it asks: of two who leave at once, one surely finds nobody there.
  try_lock(file_, kHost, F_UNLCK);
  try_lock(file_, kMembers, F_UNLCK);
  if (try_lock(file_, kMembers, F_WRLCK) && is_linked(file_)) {
    unlink(store_file_.c_str());
    unlink((folder_ + kLock).c_str());
    rmdir(folder_.c_str());
  }
  close(std::exchange(file_, -1));
}

bool FileMeeting::try_host() {
  if (mkdir(folder_.c_str(), 0700) != 0 && errno != EEXIST) {
    refuse(folder_, std::strerror(errno));
  }
  if (!check_folder(folder_)) return false;  // an earlier run has just removed it
  file_ = open((folder_ + kLock).c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (file_ < 0) {
    if (errno == ENOENT) return false;
    refuse(folder_, std::strerror(errno));
  }
  if (!try_lock(file_, kMembers, F_WRLCK) || !is_linked(file_)) {
    const bool hosted = is_locked(file_, kHost);
    close(std::exchange(file_, -1));
    if (!hosted) return false;
    refuse(folder_, "another run is using it; expected a path of its own for each run");
  }
  try {
    open_meeting();
  } catch (...) {
    leave();
    throw;
  }
  return true;
}

// REQUIRES: kMembers is ours alone; so nobody joins before the name is written.
void FileMeeting::open_meeting() {
  clear(folder_);
  const std::string name = fresh_name();
  store_file_ = folder_ + name;
  if (ftruncate(file_, 0) != 0 || write(file_, name.data(), name.size()) < 0 ||
      !try_lock(file_, kHost, F_WRLCK) || !try_lock(file_, kMembers, F_RDLCK)) {
    refuse(folder_, std::strerror(errno));
  }
}

bool FileMeeting::try_join() {
  if (!check_folder(folder_)) return false;
  file_ = open((folder_ + kLock).c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
  if (file_ < 0) return false;
  if (!is_locked(file_, kHost) || !try_lock(file_, kMembers, F_RDLCK)) {
    close(std::exchange(file_, -1));
    return false;
  }
  char text[256];
  const ssize_t count = read(file_, text, sizeof text);
  if (count > 0) store_file_ = folder_ + std::string(text, static_cast<std::size_t>(count));
  // Asked again: rank 0 of an earlier run may have left meanwhile.
  if (count > 0 && is_linked(file_) && is_locked(file_, kHost)) return true;
  leave();
  return false;
}

c10::intrusive_ptr<c10d::Store> PunctualFileStore::clone() {
  return c10::make_intrusive<PunctualFileStore>(path_);
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

}  // namespace brigade::group
