// The temporary folders of a test, for workers that are started anew (ranks.cpp): such a
// worker runs the test again from its beginning, and must find the folders of the process
// that started it.
#pragma once
#include <string>

namespace brigade::testing {

// Lists the starter's folders, one a line, in the order in which the test makes them.
inline constexpr const char* kFoldersOfStarter = "BRIGADE_TEST_FOLDERS";
// The folders that were made in the present test.
std::string folders_of_this_test();

}  // namespace brigade::testing
