// A store in a folder, for ranks that share a file system.
#pragma once
#include <string>
#include <torch/csrc/distributed/c10d/FileStore.hpp>

#include "group/network.h"

namespace brigade::group {

// The folder that `file:///PATH` names. Rank 0 makes it, with mode 0700, and holds a lock
// on a file in it for as long as it lives; the store's own file has a fresh name each time.
// So what an earlier run left behind is told from a run under way: the others wait until
// the lock is held, and join the file it names; rank 0 clears what is left over, and
// refuses a folder in use. Whoever leaves last removes the folder.
class FileMeeting {
 public:
  // Throws RendezvousError: not ours, in use, or rank 0 not there by the deadline.
  FileMeeting(std::string folder, int rank, Deadline deadline);
  ~FileMeeting();
  FileMeeting(const FileMeeting&) = delete;
  FileMeeting& operator=(const FileMeeting&) = delete;

  // The file to open a c10d::FileStore on.
  const std::string& store_file() const { return store_file_; }

 private:
  bool try_host();
  void open_meeting();
  bool try_join();
  void leave();

  std::string folder_;
  std::string store_file_;
  int file_ = -1;  // the lock file, open
};

// A FileStore that keeps its time limits: c10d's own counts whole seconds, and one too
// many. It never removes its file: of two c10d stores that close at once each may take the
// other for the last.
class PunctualFileStore : public c10d::FileStore {
 public:
  explicit PunctualFileStore(std::string path) : FileStore(std::move(path), -1) {}
  c10::intrusive_ptr<c10d::Store> clone() override;
  std::vector<uint8_t> get(const std::string& key) override;
  void wait(const std::vector<std::string>& keys) override;
  void wait(const std::vector<std::string>& keys,
            const std::chrono::milliseconds& timeout) override;
};

}  // namespace brigade::group
