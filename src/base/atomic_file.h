// Files that are whole or not there, also when the disk fills up or Ctrl-C comes.
#pragma once
#include <string>
#include <string_view>

namespace brigade::base {

// A file that is written beside its place, and becomes `path` in one go, or goes away.
// Every member throws Error that names the path and the reason; `path` is then as it was.
class AtomicFile {
 public:
  // `beside`: what is added to the path until the file is complete. A file of that name,
  // left by a process that was killed, is written over.
  AtomicFile(std::string path, std::string_view beside);
  // Removes what was not committed.
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(std::string_view bytes);
  // Gives the file its name. Others see it from now on.
  void commit();
  // The same, and the file outlives a power cut: returns when it is on the disk.
  void commit_to_disk();

 private:
  [[noreturn]] void fail(const char* doing, int error);
  void flush_folder() const;

  std::string path_;
  std::string partial_;
  int fd_ = -1;
  bool committed_ = false;
};

// Makes `folder` if need be, and throws ConfigError, which names `flag`, unless files can
// be made in it. To be called before any work is done.
void check_output_folder(const std::string& folder, std::string_view flag);
// The same for the folder that `path` lies in, and that `path` is no folder.
void check_output_file(const std::string& path, std::string_view flag);

// Replaces what was there in one go, see AtomicFile; signals wait meanwhile. A device or a
// pipe is written as it is. Throws Error.
void write_whole(const std::string& path, std::string_view text);

// Grows by whole records, each there as soon as add() has returned: for what is watched
// while it is written. A record that does not fit leaves nothing of itself.
class RecordFile {
 public:
  // `append`: goes on behind what is there. Throws Error.
  explicit RecordFile(std::string path, bool append = false);
  ~RecordFile();
  RecordFile(const RecordFile&) = delete;
  RecordFile& operator=(const RecordFile&) = delete;
  void add(std::string_view record);
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  int fd_ = -1;
};

}  // namespace brigade::base
