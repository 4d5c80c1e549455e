#include "launch/link_thread.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdint>

namespace brigade::launching {

LinkThread::LinkThread() : event(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

LinkThread::~LinkThread() { close(event); }

void LinkThread::tell() const {
  const std::uint64_t one = 1;
  if (write(event, &one, sizeof one) < 0) return;
}

void LinkThread::quiet() const {
  std::uint64_t count = 0;
  if (read(event, &count, sizeof count) < 0) return;
}

void LinkThread::end() {
  std::unique_lock lock(mutex);
  stop = true;
  changed.notify_all();
  changed.wait_for(lock, std::chrono::seconds(2), [this] { return finished; });
}

}  // namespace brigade::launching
