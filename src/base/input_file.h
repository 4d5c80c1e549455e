// Reads files that are named by users.
#pragma once
#include <cstdint>
#include <string>

namespace brigade::base {

// A regular file, open for reading. A pipe, a device or a folder is refused at once:
// reading it could take for ever. Every member throws an Error with the reason only; the
// caller adds the file and its purpose.
class InputFile {
 public:
  explicit InputFile(const std::string& path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  // The size at opening.
  std::uint64_t size() const { return size_; }
  // Reads exactly `length` bytes, from the byte `from` on.
  void read(std::uint64_t from, void* into, std::uint64_t length) const;
  // All size() bytes.
  std::string text() const;

 private:
  int fd_ = -1;
  std::uint64_t size_ = 0;
};

// Returns the content of a file, empty if it can't be read or is not regular. Uses no
// stream, which throws when the process of a file in /proc ends between opening and
// reading.
std::string read_whole(const std::string& path);

}  // namespace brigade::base
