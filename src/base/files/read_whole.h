// The content of a file, also of one in /proc, about a process that may end at any moment.
#pragma once
#include <string>

namespace brigade::base {

// Empty if it can't be read, or is no regular file. Not by a stream, which throws when the
// process that a file of /proc is about ends between the opening and the reading.
std::string read_whole(const std::string& path);

}  // namespace brigade::base
