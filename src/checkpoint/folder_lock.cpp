#include "checkpoint/folder_lock.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>

#include "base/input_file.h"
#include "brigade/checkpoint.h"

namespace brigade::checkpoint {
namespace {

// A POSIX record lock belongs to the process, ends with it in any case, is not inherited by
// forked children, and holds between hosts on NFS. So each process has one list of locks.
struct Claims {
  std::mutex lock;
  std::map<std::pair<dev_t, ino_t>, int> descriptors;  // by the lock's device and inode
};
Claims& claims() {
  static Claims all;
  return all;
}

std::string lock_path(const std::string& folder) { return folder + "/.lock"; }

std::string this_process() {
  char host[256] = "";
  ::gethostname(host, sizeof host - 1);
  return "process " + std::to_string(::getpid()) + " on " + host;
}

// A file system without locks must not prevent saving.
bool has_no_locks(int error) {
  return error == ENOLCK || error == EOPNOTSUPP || error == ENOSYS || error == EINVAL;
}

void sign(int fd) {
  const std::string text = this_process() + "\n";
  if (::ftruncate(fd, 0) != 0 ||
      ::pwrite(fd, text.data(), text.size(), 0) != static_cast<ssize_t>(text.size())) {
    // The lock holds; only its owner's name would be missing in an error.
  }
}

[[noreturn]] void refuse(const std::string& folder) {
  std::string owner = base::read_whole(lock_path(folder)).substr(0, 200);
  owner = owner.substr(0, owner.find('\n'));
  throw CheckpointError(folder + ": another job saves its checkpoints here (" +
                        (owner.empty() ? "it has locked " + lock_path(folder) : owner) +
                        "); give this one a folder of its own, or end the other");
}

}  // namespace

void claim_folder(const std::string& folder) {
  Claims& all = claims();
  const std::lock_guard guard(all.lock);
  struct stat about {};
  const std::string path = lock_path(folder);
  // Opening and closing the file once more would release the lock.
  if (::stat(path.c_str(), &about) == 0 &&
      all.descriptors.contains({about.st_dev, about.st_ino})) {
    return;
  }
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0666);
  if (fd < 0)
    throw CheckpointError(path +
                          ": cannot make the folder's lock: " + std::strerror(errno));
  struct flock whole {};
  whole.l_type = F_WRLCK;
  whole.l_whence = SEEK_SET;
  if (::fcntl(fd, F_SETLK, &whole) != 0) {
    const int error = errno;
    ::close(fd);
    if (has_no_locks(error)) return;
    if (error == EACCES || error == EAGAIN) refuse(folder);
    throw CheckpointError(path + ": cannot lock it: " + std::strerror(error));
  }
  sign(fd);
  ::fstat(fd, &about);
  all.descriptors[{about.st_dev, about.st_ino}] = fd;
}

void give_back_folder(const std::string& folder) {
  Claims& all = claims();
  const std::lock_guard guard(all.lock);
  struct stat about {};
  if (::stat(lock_path(folder).c_str(), &about) != 0) return;
  const auto found = all.descriptors.find({about.st_dev, about.st_ino});
  if (found == all.descriptors.end()) return;
  ::close(found->second);
  all.descriptors.erase(found);
}

}  // namespace brigade::checkpoint
