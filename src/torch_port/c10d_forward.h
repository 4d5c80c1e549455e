// Names of c10d for headers that need no more than a pointer to them.
#pragma once
#include <c10/util/intrusive_ptr.h>

namespace c10d {
class Backend;
class ProcessGroup;
class Store;
}  // namespace c10d
