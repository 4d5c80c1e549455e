// Vocabulary. A *set* is the files of one checkpoint: SET.shared.safetensors, written by
// rank 0, and SET.rank-N.safetensors, a *shard* of each rank that has parts of its own. The
// *manifest* names the set that counts; renaming the manifest into place is the commit.
#include "brigade/checkpoint.h"

#include <ATen/ATen.h>

#include <filesystem>
#include <set>

#include "base/exception_text.h"
#include "checkpoint/buckets.h"
#include "checkpoint/folder_lock.h"
#include "checkpoint/format.h"
#include "checkpoint/manifest.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;
using checkpoint::lines_of;
using checkpoint::Manifest;
using checkpoint::read_file;
using checkpoint::read_manifest;
using checkpoint::shard_path;
using checkpoint::shared_path;
using checkpoint::write_file;

void check_parts(std::span<const CheckpointPart> parts) {
  std::set<std::string> names;
  for (const CheckpointPart& part : parts) {
    if (part.name.empty() || part.name.find_first_of("/\n") != std::string::npos)
      throw ConfigError("a checkpoint's part is named '" + part.name +
                        "'; a name is not empty and has no '/'");
    if (!names.insert(part.name).second)
      throw ConfigError("two parts of a checkpoint are named '" + part.name +
                        "'; give one another name");
  }
}

std::vector<std::string> names_of(std::span<const CheckpointPart> parts, bool per_rank) {
  std::vector<std::string> names;
  for (const CheckpointPart& part : parts)
    if (part.per_rank == per_rank) names.push_back(part.name);
  return names;
}

// Returns every rank's result of `mine`, by rank. If it throws on one rank, all throw.
std::vector<std::string> check_same(const ProcessGroup& group, const std::string& what,
                                    const std::function<std::string()>& mine) {
  std::string text;
  try {
    text = "+" + mine();
  } catch (const std::exception& error) {
    text = "-" + base::text_of(error);
  }
  std::vector<std::string> all = group.gather_texts(what, text);
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].starts_with('-'))
      throw CheckpointError("rank " + std::to_string(rank) + ": " + all[rank].substr(1));
    all[rank].erase(0, 1);
  }
  return all;
}

// ---- saving -----------------------------------------------------------------------------

// Reads the lines that a rank has sent. Anyone who reaches the store can write there, so
// text that a rank would not write must not become a path or a manifest.
std::vector<std::string> lines_from(int rank, const std::string& text, size_t count) {
  std::vector<std::string> lines = lines_of(text);
  if (lines.size() != count)
    throw CheckpointError("save_checkpoint: rank " + std::to_string(rank) + " sent '" +
                          text + "', which no rank of brigade would");
  return lines;
}

// Returns the same name on all ranks; throws if their steps differ.
std::string agree_on_set(const std::string& folder, int64_t step,
                         const ProcessGroup& group) {
  const auto all = check_same(group, "saving a checkpoint", [&]() -> std::string {
    std::string text = std::to_string(step) + "\n";
    if (group.rank() != 0) {
      checkpoint::give_back_folder(folder);
      return text;
    }
    fs::create_directories(folder);
    return text + checkpoint::fresh_set_name(step) + "\n";
  });
  const std::vector<std::string> first = lines_from(0, all[0], 2);
  for (size_t rank = 1; rank < all.size(); ++rank) {
    const std::string other = lines_from(static_cast<int>(rank), all[rank], 1)[0];
    if (other != first[0])
      throw MismatchError("save_checkpoint: rank 0 saves step " + first[0] + ", rank " +
                          std::to_string(rank) + " saves step " + other);
  }
  if (!checkpoint::is_set_name(first[1]))
    throw CheckpointError("save_checkpoint: rank 0 names the set '" + first[1] +
                          "', which is no name of a set");
  return first[1];
}

void add(SafetensorsFile& file, const std::string& part, PartState state) {
  for (auto& [key, tensor] : state.tensors)
    file.tensors[part + "/" + key] = std::move(tensor);
  for (auto& [key, value] : state.values)
    file.metadata[part + "/" + key] = std::move(value);
}

// Returns the checksums of this rank's shard and, on rank 0, of the shared file.
std::string write_mine(const std::string& folder, const std::string& set, int rank,
                       std::span<const CheckpointPart> parts) {
  SafetensorsFile shared;
  SafetensorsFile shard;
  for (const CheckpointPart& part : parts) {
    PartState state = part.save();
    if (part.per_rank) {
      add(shard, part.name, std::move(state));
    } else if (rank == 0) {
      add(shared, part.name, std::move(state));
    }
  }
  // The set's name makes each file's checksum unique to the set.
  shared.metadata["set"] = shard.metadata["set"] = set;
  std::string checksums;
  if (names_of(parts, true).empty()) {
    checksums = "-\n";
  } else {
    checksums = write_file(shard_path(folder, set, rank), shard) + "\n";
  }
  if (rank == 0) checksums += write_file(shared_path(folder, set), shared) + "\n";
  return checksums;
}

// Writes every rank's files of the set, and returns their checksums by rank.
std::vector<std::string> write_set(const std::string& folder, const std::string& set,
                                   const ProcessGroup& group,
                                   std::span<const CheckpointPart> parts) {
  try {
    return check_same(group, "writing a checkpoint", [&] {
      // It claims only now: a process that had the folder before has given it back.
      if (group.rank() == 0) checkpoint::claim_folder(folder);
      return write_mine(folder, set, group.rank(), parts);
    });
  } catch (const CheckpointError&) {
    // A rank has failed and every rank knows it, so nobody will commit. After any other
    // error rank 0 may have heard from every rank, and commit.
    std::error_code error;
    fs::remove(shard_path(folder, set, group.rank()), error);
    if (group.rank() == 0) fs::remove(shared_path(folder, set), error);
    throw;
  }
}

// Removes files of other sets: of older checkpoints, and of those never committed. Files
// that can't be removed now are tried again after the next save.
void remove_other_sets(const std::string& folder, const std::string& set) {
  std::error_code error;
  std::vector<fs::path> others;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const auto its_set = checkpoint::set_of_file(entry.path().filename());
    if (its_set && *its_set != set) others.push_back(entry.path());
  }
  for (const fs::path& path : others) fs::remove(path, error);
}

void commit(const std::string& folder, const std::string& set, int64_t step,
            std::span<const CheckpointPart> parts,
            const std::vector<std::string>& checksums) {
  Manifest manifest;
  manifest.set = set;
  manifest.step = step;
  manifest.ranks = static_cast<int>(checksums.size());
  manifest.shared_parts = names_of(parts, false);
  manifest.rank_parts = names_of(parts, true);
  manifest.shared_checksum = lines_from(0, checksums[0], 2)[1];
  for (int rank = 0; rank < manifest.ranks; ++rank)
    manifest.shard_checksums.push_back(
        lines_from(rank, checksums[static_cast<size_t>(rank)], rank == 0 ? 2 : 1)[0]);
  checkpoint::write_manifest(folder, manifest);
  remove_other_sets(folder, set);
}

// ---- loading ----------------------------------------------------------------------------

PartState part_of(const SafetensorsFile& file, const std::string& part) {
  PartState state;
  const std::string prefix = part + "/";
  for (auto at = file.tensors.lower_bound(prefix);
       at != file.tensors.end() && at->first.starts_with(prefix); ++at) {
    state.tensors[at->first.substr(prefix.size())] = at->second;
  }
  for (auto at = file.metadata.lower_bound(prefix);
       at != file.metadata.end() && at->first.starts_with(prefix); ++at) {
    state.values[at->first.substr(prefix.size())] = at->second;
  }
  return state;
}

void check_part_is_there(const std::string& folder, const Manifest& manifest,
                         const CheckpointPart& part) {
  const auto& names = part.per_rank ? manifest.rank_parts : manifest.shared_parts;
  if (std::find(names.begin(), names.end(), part.name) != names.end()) return;
  const auto& others = part.per_rank ? manifest.shared_parts : manifest.rank_parts;
  const bool other = std::find(others.begin(), others.end(), part.name) != others.end();
  throw CheckpointError(
      folder + ": mismatch: the checkpoint has no part '" + part.name + "'" +
      (other ? std::string(part.per_rank ? " for each rank, but one for all"
                                         : " for all ranks, but one for each")
             : ""));
}

// Reads the shards this rank needs: its own or, at another number of ranks, all.
std::vector<SafetensorsFile> read_shards(const std::string& folder,
                                         const Manifest& manifest,
                                         const ProcessGroup& group) {
  std::vector<SafetensorsFile> shards;
  for (int rank = 0; rank < manifest.ranks; ++rank) {
    if (manifest.ranks == group.size() && rank != group.rank()) continue;
    shards.push_back(read_file(shard_path(folder, manifest.set, rank), Checksums::required,
                               manifest.shard_checksums[static_cast<size_t>(rank)]));
  }
  return shards;
}

using Change = std::function<void()>;

std::vector<Change> prepare(const std::string& folder, const Manifest& manifest,
                            const ProcessGroup& group,
                            std::span<const CheckpointPart> parts) {
  for (const CheckpointPart& part : parts) check_part_is_there(folder, manifest, part);
  std::vector<SafetensorsFile> shared;
  std::vector<SafetensorsFile> shards;
  if (!names_of(parts, false).empty())
    shared.push_back(read_file(shared_path(folder, manifest.set), Checksums::required,
                               manifest.shared_checksum));
  if (!names_of(parts, true).empty()) shards = read_shards(folder, manifest, group);

  std::vector<Change> changes;
  for (const CheckpointPart& part : parts) {
    SavedPart saved{
        .saved_ranks = manifest.ranks, .ranks = group.size(), .rank = group.rank()};
    for (const SafetensorsFile& file : part.per_rank ? shards : shared)
      saved.states.push_back(part_of(file, part.name));
    try {
      changes.push_back(part.load(std::move(saved)));
    } catch (const CheckpointError& error) {
      throw CheckpointError(folder + ": mismatch: part '" + part.name +
                            "': " + error.what());
    }
  }
  return changes;
}

// Returns the manifest that all ranks see; none when no rank sees one.
std::optional<Manifest> agree_on_manifest(const std::string& folder,
                                          const ProcessGroup& group) {
  std::optional<Manifest> manifest;
  const auto sets = check_same(group, "looking for a checkpoint", [&] {
    manifest = read_manifest(folder);
    return manifest ? manifest->set : std::string("no checkpoint");
  });
  for (size_t rank = 1; rank < sets.size(); ++rank) {
    if (sets[rank] != sets[0])
      throw CheckpointError(folder + ": rank 0 sees " + sets[0] + ", rank " +
                            std::to_string(rank) + " sees " + sets[rank] +
                            "; the folder must be one that all ranks share");
  }
  return manifest;
}

}  // namespace

std::optional<CheckpointInfo> find_checkpoint(const std::string& folder) {
  const auto manifest = read_manifest(folder);
  if (!manifest) return std::nullopt;
  CheckpointInfo info{.step = manifest->step, .ranks = manifest->ranks};
  info.parts = manifest->shared_parts;
  info.parts.insert(info.parts.end(), manifest->rank_parts.begin(),
                    manifest->rank_parts.end());
  const std::string path = shared_path(folder, manifest->set);
  const auto header = checkpoint::read_header(path, Checksums::required);
  const auto layout =
      header.metadata.find(checkpoint::kBucketPart + std::string("/layout"));
  if (layout != header.metadata.end())
    info.buckets = checkpoint::buckets_of(layout->second);
  return info;
}

void save_checkpoint(const std::string& folder, int64_t step, const ProcessGroup& group,
                     std::span<const CheckpointPart> parts) {
  check_parts(parts);
  const std::string set = agree_on_set(folder, step, group);
  const auto checksums = write_set(folder, set, group, parts);
  // From here on only the rank that committed removes anything: a rank that does not learn
  // of the commit, because its time limit has passed, cannot know that there is none. The
  // next save removes files of a set that was never committed.
  check_same(group, "committing a checkpoint", [&]() -> std::string {
    if (group.rank() == 0) commit(folder, set, step, parts, checksums);
    return {};
  });
}

std::optional<int64_t> load_checkpoint(const std::string& folder, const ProcessGroup& group,
                                       std::span<const CheckpointPart> parts) {
  check_parts(parts);
  const auto manifest = agree_on_manifest(folder, group);
  if (!manifest) return std::nullopt;
  std::vector<Change> changes;
  check_same(group, "reading a checkpoint", [&]() -> std::string {
    changes = prepare(folder, *manifest, group, parts);
    return {};
  });
  for (const Change& change : changes) change();
  return manifest->step;
}

}  // namespace brigade
