// Whether tests that need several hosts can run here.
#pragma once
#include <string>

namespace brigade::testing {

// Returns the system's reason why this process may not make network namespaces; empty if it
// may. Only this is a reason to skip a test that needs them: any later failure is part of
// the test.
std::string why_no_network_namespaces();

}  // namespace brigade::testing
