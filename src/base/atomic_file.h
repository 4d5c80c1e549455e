// Files that are written whole or not at all, also when the disk fills up or Ctrl-C comes.
#pragma once
#include <string>
#include <string_view>

namespace brigade::base {

// A draft beside `path`, which replaces `path` at once or is removed. Every member throws
// an Error that names the path and the reason; `path` is then as it was.
class AtomicFile {
 public:
  // `beside` is added to the path to name the draft. A file of that name, left by a process
  // that was killed, is overwritten.
  AtomicFile(std::string path, std::string_view beside);
  // Removes the draft unless it was committed.
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(std::string_view bytes);
  // Gives the file its name. Others see it from now on.
  void commit();
  // The same, but returns when the file is on the disk, so that it survives a power cut.
  void commit_to_disk();

 private:
  [[noreturn]] void fail(const char* doing, int error);
  void flush_folder() const;

  std::string path_;
  std::string partial_;
  int fd_ = -1;
  bool committed_ = false;
};

// Makes `folder` if it is missing, and throws ConfigError, which names `flag`, unless files
// can be made in it. To be called before any work is done.
void check_output_folder(const std::string& folder, std::string_view flag);
// The same for the folder of `path`; `path` itself must not be a folder.
void check_output_file(const std::string& path, std::string_view flag);

// Replaces the file at once, see AtomicFile; signals wait meanwhile. A device or a pipe is
// written directly. Throws Error.
void write_whole(const std::string& path, std::string_view text);

// A file that grows by whole records and can be read meanwhile: each record is there when
// add() returns. A record that does not fit on the disk leaves no trace.
class RecordFile {
 public:
  // `append` keeps the present records. Throws Error.
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
