#include "group/store/tcp_store.h"

#include "group/sockets.h"
#include "group/store/resolver_off.h"

namespace brigade::group {

c10::intrusive_ptr<c10d::TCPStore> open_tcp_store(const std::string& address,
                                                  const c10d::TCPStoreOptions& options) {
  const ResolverAnswersNo off;
  return c10::make_intrusive<c10d::TCPStore>(address, options);
}

void check_descriptors_of_store() {
  // A store's own, and those of its first clients.
  check_descriptors(16, "the store of this job");
}

}  // namespace brigade::group
