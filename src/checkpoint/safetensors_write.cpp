#include <ATen/ATen.h>

#include <nlohmann/json.hpp>

#include "base/atomic_file.h"
#include "base/hash.h"
#include "checkpoint/format.h"

namespace brigade {
namespace checkpoint {
namespace {

using nlohmann::json;

// The suffix of the file that a killed process leaves; the next save removes it.
constexpr const char* kPartial = ".partial";

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

// Puts wide elements first, so that each tensor begins at a multiple of its element size.
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
  std::string checksum = digits(header_hash(header, place));
  header.replace(place, checksum.size(), checksum);

  try {
    base::AtomicFile file(path, kPartial);
    const uint64_t length = header.size();
    file.write({reinterpret_cast<const char*>(&length), sizeof length});
    file.write(header);
    for (const Stored& each : tensors) file.write(each.bytes());
    file.commit_to_disk();
  } catch (const Error& error) {
    throw CheckpointError(error.what());
  }
  return checksum;
}

}  // namespace checkpoint

void save_safetensors(const std::string& path, const SafetensorsFile& content) {
  checkpoint::write_file(path, content);
}

}  // namespace brigade
