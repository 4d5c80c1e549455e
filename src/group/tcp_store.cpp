#include "group/tcp_store.h"

#include "group/resolver_off.h"

namespace brigade::group {

c10::intrusive_ptr<c10d::TCPStore> open_tcp_store(const std::string& address,
                                                  const c10d::TCPStoreOptions& options) {
  const ResolverAnswersNo off;
  return c10::make_intrusive<c10d::TCPStore>(address, options);
}

}  // namespace brigade::group
