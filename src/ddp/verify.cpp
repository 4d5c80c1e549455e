// Finds out, before any tensor moves, whether all ranks have the same model and options.
#include <sstream>

#include "ddp/core_state.h"
#include "engine/agreement/layout.h"

namespace brigade {
namespace {

// One line a thing: what it is called, a tab, all that must be equal.
using Lines = std::vector<std::pair<std::string, std::string>>;

Lines describe(const DdpModel& model, const DdpOptions& options) {
  Lines lines;
  for (const DdpParameter& p : model.parameters) {
    lines.emplace_back("parameter '" + p.name + "'",
                       engine::describe(p.tensor) +
                           (p.tensor.requires_grad() ? "" : ", no gradient") +
                           (p.sparse_gradient ? ", sparse gradient" : ""));
  }
  if (model.buffers && options.broadcast_buffers) {
    for (const auto& [name, tensor] : model.buffers()) {
      lines.emplace_back("buffer '" + name + "'", engine::describe(tensor));
    }
  }
  auto option = [&](const char* name, auto value) {
    lines.emplace_back(c10::str("option ", name), c10::str(value));
  };
  option("bucket_cap_mb", options.bucket_cap_mb.value_or(0));
  option("bucket_cap_mb_list", c10::Join(" ", options.bucket_cap_mb_list));
  std::string buckets;
  for (const auto& bucket : options.first_buckets) buckets += c10::Join(" ", bucket) + "; ";
  option("first_buckets", buckets);
  option("find_unused_parameters", options.find_unused_parameters);
  option("static_graph", options.static_graph);
  option("broadcast_buffers", options.broadcast_buffers);
  option("mixed_precision",
         options.mixed_precision ? options.mixed_precision->describe() : "none");
  option("init_sync", options.init_sync);
  option("skip_all_reduce_unused_params", options.skip_all_reduce_unused_params);
  option("check_replicas_every", options.check_replicas_every);
  option("gradient_as_bucket_view", options.gradient_as_bucket_view);
  option("parameters_to_ignore", c10::Join(" ", options.parameters_to_ignore));
  return lines;
}

std::string join(const Lines& lines) {
  std::string text;
  for (const auto& [what, value] : lines) text += what + '\t' + value + '\n';
  return text;
}

Lines split(const std::string& text) {
  Lines lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    auto tab = line.find('\t');
    lines.emplace_back(line.substr(0, tab), line.substr(tab + 1));
  }
  return lines;
}

uint64_t hash(const std::string& text) {  // FNV-1a: the same in every build
  uint64_t value = 14695981039346656037U;
  for (unsigned char byte : text) value = (value ^ byte) * 1099511628211U;
  return value;
}

std::string list(const std::vector<int>& ranks) {
  return (ranks.size() == 1 ? "rank " : "ranks ") + c10::Join(", ", ranks);
}

// The first line in which some rank differs from rank 0, and how.
std::string first_difference(const std::vector<std::string>& texts) {
  std::vector<Lines> all;
  for (const std::string& text : texts) all.push_back(split(text));
  for (size_t line = 0;; ++line) {
    auto of = [&](size_t rank) {
      if (line >= all[rank].size()) return std::string("nothing");
      return all[rank][line].first + ": " + all[rank][line].second;
    };
    std::map<std::string, std::vector<int>> others;
    for (size_t rank = 1; rank < all.size(); ++rank) {
      if (of(rank) != of(0)) others[of(rank)].push_back(static_cast<int>(rank));
    }
    if (others.empty()) continue;  // there is a difference, or nobody would ask
    std::string text = "rank 0 has " + of(0);
    for (const auto& [what, ranks] : others) {
      text += "; " + list(ranks) + (ranks.size() == 1 ? " has " : " have ") + what;
    }
    return text;
  }
}

}  // namespace

void verify_same_on_all_ranks(const DdpModel& model, const DdpOptions& options,
                              const ProcessGroup& group, const std::string& refusal) {
  // A rank that refuses says so: the others need not wait for it.
  const std::string mine = refusal.empty() ? join(describe(model, options)) : "";
  const std::string word =
      refusal.empty() ? std::to_string(hash(mine)) : "refused: " + refusal;
  const auto words = group.gather_texts("ddp model", word);
  std::vector<int> refused;
  for (int rank = 0; rank < group.size(); ++rank) {
    if (words[rank].starts_with("refused: ")) refused.push_back(rank);
  }
  if (!refusal.empty()) return;
  if (!refused.empty()) {
    throw MismatchError("DistributedDataParallel was refused on " + list(refused) + ": " +
                        words[refused.front()].substr(9));
  }
  if (std::all_of(words.begin(), words.end(), [&](auto& w) { return w == words[0]; }))
    return;
  throw MismatchError(
      "the ranks' models or options differ: " +
      first_difference(group.gather_texts("ddp model details", mine)) +
      ". Every rank must build the same model and wrap it with the same options");
}

}  // namespace brigade
