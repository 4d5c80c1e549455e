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

}  // namespace brigade::base
