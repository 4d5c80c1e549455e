// A value that this process and the workers it forks afterwards share.
#pragma once
#include <sys/mman.h>

#include <new>
#include <type_traits>

#include "brigade/error.h"

namespace brigade::tool {

// REQUIRES: T holds no pointers; access is ordered by T's own means (atomics) or by the end
// of the workers.
template <class T>
class SharedMemory {
 public:
  static_assert(std::is_trivially_destructible_v<T>);
  SharedMemory() {
    void* memory =
        mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw Error("no memory to share with the workers");
    value_ = new (memory) T;
  }
  ~SharedMemory() { munmap(value_, sizeof(T)); }
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  T* operator->() const { return value_; }
  T& operator*() const { return *value_; }

 private:
  T* value_;
};

}  // namespace brigade::tool
