#include "checkpoint/manifest.h"

#include <charconv>
#include <filesystem>
#include <random>
#include <regex>

#include "checkpoint/format.h"

namespace brigade::checkpoint {
namespace {

namespace fs = std::filesystem;

std::string manifest_path(const std::string& folder) {
  return folder + "/manifest.safetensors";
}

template <class T>
T number(const std::string& path, const std::string& text) {
  T value{};
  const char* end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stopped != end)
    throw CheckpointError(path + ": not a manifest of brigade: '" + text +
                          "' should be a number");
  return value;
}

}  // namespace

std::string shared_path(const std::string& folder, const std::string& set) {
  return folder + "/" + set + ".shared.safetensors";
}
std::string shard_path(const std::string& folder, const std::string& set, int rank) {
  return folder + "/" + set + ".rank-" + std::to_string(rank) + ".safetensors";
}

std::string fresh_set_name(int64_t step) {
  std::random_device random;
  const uint64_t unique = (static_cast<uint64_t>(random()) << 32) | random();
  return "step-" + std::to_string(step) + "-" + digits(unique);
}

bool is_set_name(std::string_view text) {
  static const std::regex kName(R"(step--?\d{1,20}-[0-9a-f]{16})");
  // A long text would exhaust the stack of a regular expression.
  return text.size() <= 64 && std::regex_match(text.begin(), text.end(), kName);
}

std::optional<std::string> set_of_file(const std::string& name) {
  static const std::regex kRest(R"(\.(shared|rank-\d{1,10})\.safetensors(\.partial)?)");
  const std::string set = name.substr(0, name.find('.'));
  const std::string rest = name.substr(set.size());
  if (rest.size() > 64 || !is_set_name(set) || !std::regex_match(rest, kRest))
    return std::nullopt;
  return set;
}

std::string join(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}
std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (size_t begin = 0, end; (end = text.find('\n', begin)) != std::string::npos;
       begin = end + 1) {
    lines.push_back(text.substr(begin, end - begin));
  }
  return lines;
}

void write_manifest(const std::string& folder, const Manifest& manifest) {
  SafetensorsFile file;
  file.metadata = {{"set", manifest.set},
                   {"step", std::to_string(manifest.step)},
                   {"ranks", std::to_string(manifest.ranks)},
                   {"parts.shared", join(manifest.shared_parts)},
                   {"parts.rank", join(manifest.rank_parts)},
                   {"checksum.shared", manifest.shared_checksum},
                   {"checksum.rank", join(manifest.shard_checksums)}};
  write_file(manifest_path(folder), file);
}

std::optional<Manifest> read_manifest(const std::string& folder) {
  const std::string path = manifest_path(folder);
  std::error_code error;
  // This does not follow a symbolic link: a dangling one is not an empty folder.
  const fs::file_status status = fs::symlink_status(path, error);
  if (status.type() == fs::file_type::not_found) return std::nullopt;
  if (error) throw CheckpointError(path + ": cannot look for it: " + error.message());
  return parse_manifest(path, read_file(path, Checksums::required).metadata);
}

Manifest parse_manifest(const std::string& path,
                        const std::map<std::string, std::string>& metadata) {
  const auto wrong = [&](const std::string& why) {
    throw CheckpointError(path + ": not a manifest of brigade: " + why);
  };
  const auto value = [&](const char* key) -> const std::string& {
    const auto found = metadata.find(key);
    if (found == metadata.end()) wrong("it lacks '" + std::string(key) + "'");
    return found->second;
  };
  Manifest manifest;
  manifest.set = value("set");
  manifest.step = number<int64_t>(path, value("step"));
  manifest.ranks = number<int>(path, value("ranks"));
  manifest.shared_parts = lines_of(value("parts.shared"));
  manifest.rank_parts = lines_of(value("parts.rank"));
  manifest.shared_checksum = value("checksum.shared");
  manifest.shard_checksums = lines_of(value("checksum.rank"));
  if (!is_set_name(manifest.set)) wrong("'" + manifest.set + "' is no name of a set");
  if (manifest.ranks < 1 ||
      manifest.shard_checksums.size() != static_cast<size_t>(manifest.ranks))
    wrong("it has " + std::to_string(manifest.shard_checksums.size()) + " checksums for " +
          std::to_string(manifest.ranks) + " ranks");
  return manifest;
}

}  // namespace brigade::checkpoint
