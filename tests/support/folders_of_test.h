// The temporary folders of a test, for workers that are started afresh (ranks.cpp): such a
// worker runs the test again from its beginning, and must find the folders of the process
// that started it.
#pragma once
#include <string>

namespace brigade::testing {

// The starter's folders, in the order in which the test makes them, one a line.
inline constexpr const char* kFoldersOfStarter = "BRIGADE_TEST_FOLDERS";
// Those that were made in the present test.
std::string folders_of_this_test();

}  // namespace brigade::testing
