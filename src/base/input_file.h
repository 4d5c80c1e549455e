// A file to read whose name somebody gave us.
#pragma once
#include <cstdint>
#include <string>

namespace brigade::base {

// A regular file, open for reading. A pipe, a device or a folder is refused at once:
// reading it could wait, or go on, for ever. Every member throws Error with the reason
// only; the caller says which file it was and what for.
class InputFile {
 public:
  explicit InputFile(const std::string& path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  // When it was opened.
  std::uint64_t size() const { return size_; }
  // Exactly `length` bytes, from the byte `from` on.
  void read(std::uint64_t from, void* into, std::uint64_t length) const;
  // All size() bytes.
  std::string text() const;

 private:
  int fd_ = -1;
  std::uint64_t size_ = 0;
};

// The content of a file, also of one in /proc, about a process that may end at any moment.

// Empty if it can't be read, or is no regular file. Not by a stream, which throws when the
// process that a file of /proc is about ends between the opening and the reading.
std::string read_whole(const std::string& path);

}  // namespace brigade::base
