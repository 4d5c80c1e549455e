// Whether tests that need hosts of their own can run here.
#pragma once
#include <string>

namespace brigade::testing {

// Why this process may not make network namespaces, as the system itself says; empty: it
// may. Only this is a reason to skip a test that needs them: whatever fails afterwards is
// what the test is about.
std::string why_no_network_namespaces();

}  // namespace brigade::testing
