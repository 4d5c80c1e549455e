#include "base/input_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

#include "brigade/error.h"

namespace brigade::base {
namespace {

const char* kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISFIFO(mode)) return "a pipe";
  if (S_ISSOCK(mode)) return "a socket";
  return "a device";
}

std::string why_not_opened(const std::string& path) {
  const int error = errno;
  struct stat about {};
  const bool to_nothing = error == ENOENT && ::lstat(path.c_str(), &about) == 0;
  return std::string("cannot open it: ") + std::strerror(error) +
         (to_nothing ? "; it is a symbolic link to nothing" : "");
}

}  // namespace

InputFile::InputFile(const std::string& path) {
  // Without O_NONBLOCK, opening a pipe waits for a writer.
  fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (fd_ < 0) throw Error(why_not_opened(path));
  struct stat about {};
  const int error = ::fstat(fd_, &about) == 0 ? 0 : errno;
  if (error == 0 && S_ISREG(about.st_mode)) {
    size_ = static_cast<std::uint64_t>(about.st_size);
    return;
  }
  ::close(fd_);
  if (error) throw Error(std::string("cannot open it: ") + std::strerror(error));
  throw Error(std::string("it is ") + kind_of(about.st_mode) + ", not a regular file");
}

InputFile::~InputFile() { ::close(fd_); }

void InputFile::read(std::uint64_t from, void* into, std::uint64_t length) const {
  constexpr std::uint64_t kMost = std::uint64_t{1} << 30;  // one call reads 2 GiB at most
  char* at = static_cast<char*>(into);
  while (length > 0) {
    const ssize_t count =
        ::pread(fd_, at, std::min(length, kMost), static_cast<off_t>(from));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0)
      throw Error("cannot read it at byte " + std::to_string(from) + ": " +
                  std::strerror(errno));
    if (count == 0)
      throw Error("truncated: it became shorter than " + std::to_string(from + length) +
                  " bytes while it was read");
    at += count;
    from += static_cast<std::uint64_t>(count);
    length -= static_cast<std::uint64_t>(count);
  }
}

std::string InputFile::text() const {
  std::string all;
  try {
    all.resize(size_);
  } catch (const std::exception&) {
    throw Error("its " + std::to_string(size_) + " bytes do not fit into memory");
  }
  read(0, all.data(), size_);
  return all;
}

std::string read_whole(const std::string& path) {
  std::string text;
  // A FIFO may never get a writer, and a device may have no end.
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) return text;
  struct stat info {};
  char buffer[4096];
  if (fstat(file, &info) == 0 && S_ISREG(info.st_mode)) {
    for (ssize_t count; (count = read(file, buffer, sizeof buffer)) > 0;)
      text.append(buffer, static_cast<size_t>(count));
  }
  close(file);
  return text;
}

}  // namespace brigade::base
