#include <ATen/ATen.h>
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/hash.h"
#include "checkpoint/format.h"

namespace brigade {
namespace checkpoint {
namespace {

using nlohmann::json;

// A file that becomes `path` in commit(), or goes away.
class PartialFile {
 public:
  explicit PartialFile(std::string path)
      : path_(std::move(path)), partial_(path_ + ".partial") {
    file_ = ::open(partial_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (file_ < 0) fail("create");
  }
  PartialFile(const PartialFile&) = delete;
  PartialFile& operator=(const PartialFile&) = delete;
  ~PartialFile() {
    if (file_ >= 0) ::close(file_);
    if (!committed_) ::unlink(partial_.c_str());
  }

  void write(std::string_view bytes) {
    constexpr size_t kMost = size_t{1} << 30;  // one call writes 2 GiB at most
    while (!bytes.empty()) {
      const ssize_t count = ::write(file_, bytes.data(), std::min(bytes.size(), kMost));
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) fail("write");
      bytes.remove_prefix(static_cast<size_t>(count));
    }
  }

  void commit() {
    if (::fsync(file_) != 0) fail("flush");
    if (::close(std::exchange(file_, -1)) != 0) fail("close");
    if (::rename(partial_.c_str(), path_.c_str()) != 0) fail("rename");
    committed_ = true;
    flush_folder();
  }

 private:
  [[noreturn]] void fail(const char* doing) {
    const int error = errno;
    // Not in the destructor only: it does not run when the constructor throws.
    if (file_ >= 0) ::close(std::exchange(file_, -1));
    ::unlink(partial_.c_str());
    throw CheckpointError("cannot " + std::string(doing) + " " + partial_ + ": " +
                          std::strerror(error) + "; " + path_ + " is as it was");
  }

  // The new name lasts only when the folder is on the disk as well.
  void flush_folder() {
    std::filesystem::path folder = std::filesystem::path(path_).parent_path();
    if (folder.empty()) folder = ".";
    const int file = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    const bool flushed = file >= 0 && ::fsync(file) == 0;
    const int error = errno;
    if (file >= 0) ::close(file);
    if (!flushed) {
      throw CheckpointError("cannot flush the folder of " + path_ + ": " +
                            std::strerror(error) +
                            "; the new file is there, but may not outlive a power cut");
    }
  }

  std::string path_;
  std::string partial_;
  int file_ = -1;
  bool committed_ = false;
};

struct Stored {
  std::string name;
  at::Tensor tensor;  // dense, on the CPU
  std::string_view bytes() const {
    return {static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes()};
  }
};

Stored stored(const std::string& name, const at::Tensor& tensor) {
  const std::string what = "safetensors: tensor '" + name + "' ";
  if (name == kMetadata) throw ConfigError(what + "has the name that the format reserves");
  if (!tensor.defined()) throw ConfigError(what + "is not defined");
  if (tensor.layout() != at::kStrided)
    throw ConfigError(what + "is not dense; store its indices and values instead");
  if (!name_of(tensor.scalar_type()))
    throw ConfigError(what + "is of dtype " + at::toString(tensor.scalar_type()) +
                      ", which the format does not have");
  return {name, tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()};
}

// Wide elements first, so that each tensor lies at a multiple of its element size.
std::vector<Stored> in_order(const std::map<std::string, at::Tensor>& tensors) {
  std::vector<Stored> all;
  for (const auto& [name, tensor] : tensors) all.push_back(stored(name, tensor));
  std::stable_sort(all.begin(), all.end(), [](const Stored& a, const Stored& b) {
    return a.tensor.element_size() > b.tensor.element_size();
  });
  return all;
}

json metadata_of(const SafetensorsFile& content, const std::vector<Stored>& tensors) {
  json metadata = json::object();
  for (const auto& [key, value] : content.metadata) {
    if (key == kFormat || key.starts_with(kChecksum))
      throw ConfigError("safetensors: metadata '" + key + "' has a name of brigade's own");
    metadata[key] = value;
  }
  metadata[kFormat] = "1";
  metadata[kChecksum] = kNoChecksum;
  for (const Stored& each : tensors)
    metadata[kChecksumOf + each.name] = digits(base::hash64(each.bytes()));
  return metadata;
}

std::string header_text(const SafetensorsFile& content,
                        const std::vector<Stored>& tensors) {
  json header = json::object();
  header[kMetadata] = metadata_of(content, tensors);
  uint64_t begin = 0;
  for (const Stored& each : tensors) {
    const uint64_t end = begin + each.bytes().size();
    header[each.name] = {{"dtype", *name_of(each.tensor.scalar_type())},
                         {"shape", each.tensor.sizes().vec()},
                         {"data_offsets", {begin, end}}};
    begin = end;
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const json::exception& error) {
    throw ConfigError(std::string("safetensors: names and metadata must be UTF-8: ") +
                      error.what());
  }
  text.resize((text.size() + 7) / 8 * 8, ' ');
  if (text.size() > kMaxHeader)
    throw ConfigError("safetensors: the names and metadata take " +
                      std::to_string(text.size()) + " bytes; the format's limit is " +
                      std::to_string(kMaxHeader));
  return text;
}

}  // namespace

std::string write_file(const std::string& path, const SafetensorsFile& content) {
  const std::vector<Stored> tensors = in_order(content.tensors);
  std::string header = header_text(content, tensors);
  const size_t place = checksum_place(header);
  const std::string checksum = digits(header_hash(header, place));
  header.replace(place, checksum.size(), checksum);

  PartialFile file(path);
  const uint64_t length = header.size();
  file.write({reinterpret_cast<const char*>(&length), sizeof length});
  file.write(header);
  for (const Stored& each : tensors) file.write(each.bytes());
  file.commit();
  return checksum;
}

}  // namespace checkpoint

void save_safetensors(const std::string& path, const SafetensorsFile& content) {
  checkpoint::write_file(path, content);
}

}  // namespace brigade
