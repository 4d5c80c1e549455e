// The layout of buckets as text.
#pragma once
#include <string>
#include <vector>

namespace brigade::checkpoint {

inline constexpr const char* kBucketPart = "buckets";

std::string text_of(const std::vector<std::vector<std::string>>& buckets);
// Throws CheckpointError.
std::vector<std::vector<std::string>> buckets_of(const std::string& text);

}  // namespace brigade::checkpoint
