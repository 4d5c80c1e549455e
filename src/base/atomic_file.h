// Files that are whole or not there, also when the disk fills up or Ctrl-C comes.
#pragma once
#include <string>
#include <string_view>

namespace brigade::base {

// Makes `folder` if need be, and throws ConfigError, which names `flag`, unless files can
// be made in it. To be called before any work is done.
void check_output_folder(const std::string& folder, std::string_view flag);
// The same for the folder that `path` lies in, and that `path` is no folder.
void check_output_file(const std::string& path, std::string_view flag);

// Replaces what was there in one go. Until it is complete the text is in a file beside it
// that goes when anything fails; signals wait meanwhile. Throws Error.
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
