#include "launch/admission/secret.h"

#include <fcntl.h>
#include <openssl/crypto.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "brigade/error.h"

namespace brigade::launching {
namespace {

// Closes when it goes.
class SecretFile {
 public:
  // Not waiting: a pipe without a writer would hold the launcher for ever.
  explicit SecretFile(const std::string& path)
      : fd_(open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY)) {}
  ~SecretFile() {
    if (fd_ >= 0) close(fd_);
  }
  SecretFile(const SecretFile&) = delete;
  SecretFile& operator=(const SecretFile&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

[[noreturn]] void refuse_secret(const std::string& source, const std::string& why) {
  throw ConfigError("the secret of " + source + " " + why);
}

}  // namespace

Secret::Secret(std::string bytes, const std::string& source) : bytes_(std::move(bytes)) {
  while (!bytes_.empty() && (bytes_.back() == '\n' || bytes_.back() == '\r')) {
    bytes_.pop_back();
  }
  if (bytes_.size() >= kFewest && bytes_.size() <= kMost) return;
  const std::string size = std::to_string(bytes_.size());
  OPENSSL_cleanse(bytes_.data(), bytes_.size());
  refuse_secret(source, "has " + size + " bytes; expected " + std::to_string(kFewest) +
                            " to " + std::to_string(kMost) +
                            ", as from: openssl rand -hex 32");
}

Secret::~Secret() { OPENSSL_cleanse(bytes_.data(), bytes_.size()); }

std::shared_ptr<const Secret> Secret::from_file(const std::string& path) {
  const std::string source = "'" + path + "'";
  const SecretFile file(path);
  struct stat info {};
  if (file.get() < 0 || fstat(file.get(), &info) != 0) {
    refuse_secret(source, std::string("cannot be read: ") + std::strerror(errno));
  }
  if (!S_ISREG(info.st_mode)) refuse_secret(source, "is no plain file");
  if (info.st_mode & (S_IRWXG | S_IRWXO)) {
    refuse_secret(source, "is open to other users of this host; run: chmod 600 " + path);
  }
  std::string bytes(kMost + 3, '\0');
  size_t have = 0;
  for (ssize_t count = 1; count > 0 && have < bytes.size();) {
    count = read(file.get(), bytes.data() + have, bytes.size() - have);
    if (count < 0 && errno == EINTR)
      count = 1;
    else if (count < 0)
      refuse_secret(source, std::string("cannot be read: ") + std::strerror(errno));
    else
      have += static_cast<size_t>(count);
  }
  // Shrinks in place: no copy is left behind.
  bytes.resize(have);
  return std::make_shared<const Secret>(std::move(bytes), source);
}

std::shared_ptr<const Secret> Secret::from_environment() {
  char* value = std::getenv(kVariable);
  if (!value) return nullptr;
  std::string bytes = value;
  // Out of /proc/PID/environ, too.
  OPENSSL_cleanse(value, bytes.size());
  unsetenv(kVariable);
  return std::make_shared<const Secret>(std::move(bytes), kVariable);
}

}  // namespace brigade::launching
