#include "group/store/tcp_store.h"

#include <fcntl.h>
#include <unistd.h>

#include <vector>

#include "brigade/error.h"
#include "group/store/resolver_off.h"

namespace brigade::group {
namespace {

// A store's own, and those of its first clients.
constexpr size_t kDescriptors = 16;

}  // namespace

c10::intrusive_ptr<c10d::TCPStore> open_tcp_store(const std::string& address,
                                                  const c10d::TCPStoreOptions& options) {
  const ResolverAnswersNo off;
  return c10::make_intrusive<c10d::TCPStore>(address, options);
}

void check_descriptors() {
  std::vector<int> copies;
  while (copies.size() < kDescriptors) {
    const int copy = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (copy < 0) break;
    copies.push_back(copy);
  }
  for (const int copy : copies) close(copy);
  if (copies.size() == kDescriptors) return;
  throw Error("too few file descriptors are left for the store of this job: " +
              std::to_string(copies.size()) + " of the " + std::to_string(kDescriptors) +
              " that it needs; raise the limit (ulimit -n)");
}

}  // namespace brigade::group
