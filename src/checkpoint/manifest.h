// The manifest of a checkpoint folder, and the names of the files in it.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace brigade::checkpoint {

struct Manifest {
  std::string set;
  int64_t step = 0;
  int ranks = 1;
  std::vector<std::string> shared_parts;
  std::vector<std::string> rank_parts;
  std::string shared_checksum;
  std::vector<std::string> shard_checksums;  // by rank
};

std::string shared_path(const std::string& folder, const std::string& set);
std::string shard_path(const std::string& folder, const std::string& set, int rank);

// Never returns the name of a set that is there: a step may be saved twice.
std::string fresh_set_name(int64_t step);
// Whether fresh_set_name() can have made it: no other text may become part of a path.
bool is_set_name(std::string_view text);
// Returns the set that a file of this name belongs to, complete or not; none if to none.
std::optional<std::string> set_of_file(const std::string& name);

// Writes the manifest and renames it into place. Throws CheckpointError.
void write_manifest(const std::string& folder, const Manifest& manifest);
// Returns none when there is none. Throws CheckpointError when it cannot be used.
std::optional<Manifest> read_manifest(const std::string& folder);
// Reads a manifest's metadata; `path` is for the texts of CheckpointErrors.
Manifest parse_manifest(const std::string& path,
                        const std::map<std::string, std::string>& metadata);

// Every line of `text` ends with '\n'; text after the last is left out.
std::vector<std::string> lines_of(const std::string& text);
std::string join(const std::vector<std::string>& lines);

}  // namespace brigade::checkpoint
