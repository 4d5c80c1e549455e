// What the command line refuses that CLI11 would take.
#pragma once
#include <CLI/CLI.hpp>

namespace brigade::tool {

// For names of files and folders: an empty one, such as that of a variable that is not set,
// is no name, and not the same as none given.
CLI::Validator not_empty();
// A whole number from 0 to 2^64 - 1. CLI11 alone would let -1 and 2^64 wrap around.
CLI::Validator seed_number();

}  // namespace brigade::tool
