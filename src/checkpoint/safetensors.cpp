#include <ATen/ATen.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include "base/exception_text.h"
#include "base/hash.h"
#include "base/input_file.h"
#include "brigade/checkpoint.h"
#include "checkpoint/format.h"

namespace brigade {
namespace checkpoint {
namespace {

using nlohmann::json;

// An open file and its name. Throws CheckpointError that begins with the name.
class NamedFile {
 public:
  explicit NamedFile(const std::string& path)
      : path_(path),
        file_(named([&] { return std::make_unique<base::InputFile>(path); })) {}

  [[noreturn]] void fail(const std::string& why) const {
    throw CheckpointError(path_ + ": " + why);
  }
  uint64_t size() const { return file_->size(); }
  void read(uint64_t from, void* into, uint64_t length) const {
    named([&] { file_->read(from, into, length); });
  }

 private:
  template <class Act>
  std::invoke_result_t<Act> named(Act act) const {
    try {
      return act();
    } catch (const Error& error) {
      fail(error.what());
    }
  }

  std::string path_;
  std::unique_ptr<base::InputFile> file_;
};

std::string read_text(const NamedFile& file) {
  uint64_t length = 0;
  if (file.size() < sizeof length)
    file.fail("truncated: it has " + std::to_string(file.size()) +
              " bytes; a safetensors file has 10 or more");
  file.read(0, &length, sizeof length);
  if (length > kMaxHeader || length < 2)
    file.fail("not a safetensors file, or corrupt: its header would have " +
              std::to_string(length) + " bytes; 2 to " + std::to_string(kMaxHeader) +
              " are possible");
  if (length > file.size() - sizeof length)
    file.fail("truncated: its header has " + std::to_string(length) + " bytes, but " +
              std::to_string(file.size() - sizeof length) + " follow");
  std::string text(length, '\0');
  file.read(sizeof length, text.data(), length);
  if (text[0] != '{')
    file.fail("not a safetensors file: its header does not begin with '{'");
  // JSON's parser takes a NUL for the end of the text, and would skip the rest.
  if (const size_t nul = text.find('\0'); nul != std::string::npos)
    file.fail("corrupt: its header has a zero byte at byte " +
              std::to_string(sizeof length + nul) + " of the file");
  return text;
}

// JSON's own parser silently takes the last of two equal keys.
json parse(const NamedFile& file, const std::string& text) {
  constexpr int kDeepest = 3;  // header, entry, shape
  std::vector<std::set<std::string>> keys;
  const auto watch = [&](int depth, json::parse_event_t event, json& value) {
    if (depth > kDeepest) file.fail("corrupt: its header is nested too deep");
    if (event == json::parse_event_t::object_start) keys.emplace_back();
    if (event == json::parse_event_t::object_end) keys.pop_back();
    if (event == json::parse_event_t::key &&
        !keys.back().insert(value.get<std::string>()).second) {
      file.fail("corrupt: its header has '" + value.get<std::string>() + "' twice");
    }
    return true;
  };
  try {
    return json::parse(text, watch);
  } catch (const json::parse_error& error) {
    // Its byte numbers count from 1.
    file.fail("corrupt: its header is not valid JSON at byte " +
              std::to_string(sizeof(uint64_t) + error.byte - 1) +
              " of the file: " + error.what());
  } catch (const json::exception& error) {
    file.fail(std::string("corrupt: its header is not valid JSON: ") + error.what());
  }
}

void take_metadata(const NamedFile& file, const json& values, Header& header) {
  if (!values.is_object()) file.fail("corrupt: its metadata are no JSON object");
  const std::string of_tensor = kChecksumOf;
  for (const auto& [key, value] : values.items()) {
    if (!value.is_string()) file.fail("corrupt: its metadata '" + key + "' are no string");
    const std::string text = value.get<std::string>();
    if (key == kChecksum) {
      header.checksum = text;
    } else if (key.starts_with(of_tensor)) {
      header.checksums[key.substr(of_tensor.size())] = text;
    } else {
      header.metadata[key] = text;
    }
  }
}

void check_header_hash(const NamedFile& file, const std::string& text, Checksums checksums,
                       Header& header) {
  const bool ours = header.metadata.erase(kFormat) > 0;
  if (header.checksum.empty()) {
    if (ours || !header.checksums.empty())
      file.fail("corrupt: its header's checksum is gone");
    if (checksums == Checksums::required)
      file.fail(
          "a foreign safetensors file: it has no checksums, so brigade did not "
          "write it");
    return;
  }
  const size_t place = checksum_place(text);
  if (place == std::string::npos || text.substr(place, 16) != header.checksum)
    file.fail("corrupt: its header's checksum cannot be read");
  const std::string found = digits(header_hash(text, place));
  if (found != header.checksum)
    file.fail("corrupt: its header has the checksum " + found + ", but " + header.checksum +
              " was written");
}

uint64_t whole_number(const NamedFile& file, const std::string& what, const json& value) {
  // The limit is 2^62, so that sums of two do not overflow.
  if (!value.is_number_unsigned() || value.get<uint64_t>() > uint64_t{1} << 62)
    file.fail("corrupt: " + what + " is " + value.dump() + ", which is no possible size");
  return value.get<uint64_t>();
}

Entry entry_of(const NamedFile& file, const std::string& name, const json& value) {
  const std::string what = "tensor '" + name + "'";
  if (!value.is_object() || value.size() != 3 || !value.contains("dtype") ||
      !value.contains("shape") || !value.contains("data_offsets") ||
      !value["dtype"].is_string() || !value["shape"].is_array() ||
      !value["data_offsets"].is_array() || value["data_offsets"].size() != 2) {
    file.fail("corrupt: " + what + " lacks its dtype, shape or data_offsets, or has more");
  }
  Entry entry{.name = name};
  const auto dtype = dtype_of(value["dtype"].get_ref<const std::string&>());
  if (!dtype) file.fail(what + " is of the unknown dtype " + value["dtype"].dump());
  entry.dtype = *dtype;
  entry.begin = whole_number(file, what + "'s begin", value["data_offsets"][0]);
  entry.end = whole_number(file, what + "'s end", value["data_offsets"][1]);
  // The strides of a tensor without elements must not overflow either.
  uint64_t bytes = c10::elementSize(entry.dtype);
  uint64_t extent = bytes;
  for (const json& size : value["shape"]) {
    const uint64_t length = whole_number(file, what + "'s shape", size);
    entry.shape.push_back(static_cast<int64_t>(length));
    if (__builtin_mul_overflow(extent, std::max<uint64_t>(length, 1), &extent) ||
        extent > uint64_t{1} << 62)
      file.fail("corrupt: " + what + "'s shape " + value["shape"].dump() +
                " has more elements than there can be");
    bytes *= length;
  }
  if (entry.begin > entry.end || entry.end - entry.begin != bytes)
    file.fail("corrupt: " + what + " has the bytes " + std::to_string(entry.begin) +
              " to " + std::to_string(entry.end) + ", but needs " + std::to_string(bytes));
  return entry;
}

// Checks that the tensors fill the data in order, from the first byte to the last.
void check_layout(const NamedFile& file, Header& header) {
  std::sort(header.entries.begin(), header.entries.end(),
            [](const Entry& a, const Entry& b) {
              return std::tie(a.begin, a.end) < std::tie(b.begin, b.end);
            });
  uint64_t end = 0;
  for (const Entry& entry : header.entries) {
    if (entry.begin != end)
      file.fail("corrupt: tensor '" + entry.name + "' begins at byte " +
                std::to_string(entry.begin) + " of the data; the one before ends at " +
                std::to_string(end));
    end = entry.end;
  }
  const uint64_t there = file.size() - header.data_begin;
  if (there < end)
    file.fail("truncated: its tensors have " + std::to_string(end) + " bytes, but " +
              std::to_string(there) + " are there");
  if (there > end)
    file.fail("corrupt: " + std::to_string(there - end) +
              " bytes follow after its last tensor");
}

void check_checksum_names(const NamedFile& file, const Header& header) {
  if (header.checksum.empty()) return;
  for (const Entry& entry : header.entries) {
    if (!header.checksums.contains(entry.name))
      file.fail("corrupt: tensor '" + entry.name + "' has no checksum");
  }
}

Header header_of(const NamedFile& file, Checksums checksums) {
  const std::string text = read_text(file);
  const json values = parse(file, text);
  Header header;
  header.data_begin = sizeof(uint64_t) + text.size();
  if (values.contains(kMetadata)) take_metadata(file, values[kMetadata], header);
  check_header_hash(file, text, checksums, header);
  for (const auto& [name, value] : values.items())
    if (name != kMetadata) header.entries.push_back(entry_of(file, name, value));
  check_layout(file, header);
  check_checksum_names(file, header);
  return header;
}

// Gives "tensor 'w', bytes 96 to 108 of the file,".
std::string place_of(const Header& header, const Entry& entry) {
  return "tensor '" + entry.name + "', bytes " +
         std::to_string(header.data_begin + entry.begin) + " to " +
         std::to_string(header.data_begin + entry.end) + " of the file,";
}

at::Tensor empty_tensor(const NamedFile& file, const Header& header, const Entry& entry) {
  try {
    return at::empty(entry.shape, at::TensorOptions().dtype(entry.dtype));
  } catch (const std::exception& error) {
    file.fail(place_of(header, entry) + " cannot be held: " + base::cause_of(error));
  }
}

at::Tensor tensor_of(const NamedFile& file, const Header& header, const Entry& entry) {
  at::Tensor tensor = empty_tensor(file, header, entry);
  file.read(header.data_begin + entry.begin, tensor.mutable_data_ptr(), tensor.nbytes());
  if (header.checksum.empty()) return tensor;
  const std::string found = digits(
      base::hash64({static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes()}));
  const std::string& written = header.checksums.at(entry.name);
  if (found != written)
    file.fail("corrupt: " + place_of(header, entry) + " has the checksum " + found +
              ", but " + written + " was written");
  return tensor;
}

}  // namespace

Header read_header(const std::string& path, Checksums checksums) {
  return header_of(NamedFile(path), checksums);
}

SafetensorsFile read_file(const std::string& path, Checksums checksums,
                          const std::string& checksum) {
  const NamedFile file(path);
  Header header = header_of(file, checksums);
  if (!checksum.empty() && header.checksum != checksum)
    file.fail(
        "mismatch: it is whole, but not the file that was saved with this "
        "checkpoint");
  SafetensorsFile content;
  for (const Entry& entry : header.entries)
    content.tensors[entry.name] = tensor_of(file, header, entry);
  content.metadata = std::move(header.metadata);
  return content;
}

}  // namespace checkpoint

SafetensorsFile load_safetensors(const std::string& path, Checksums checksums) {
  return checkpoint::read_file(path, checksums);
}

}  // namespace brigade
