// SPDX-License-Identifier: BSD-3-Clause
// A hook's collectives among some of the ranks only.
#pragma once
#include "brigade/export.h"
#include "brigade/hook.h"
#include "brigade/process_group.h"

namespace brigade {

// While it lives, rank(), size() and the collectives of `comm` are those of `group`, which
// this rank must be in. So any hook can run among fewer ranks:
//
//   GroupScope host(comm, comm.host_group());
//   co_return co_await inner->reduce(bucket, comm);
//
// Different groups of ranks may be at it side by side. Scopes on one Comm must end in the
// reverse order of their beginning.
class BRIGADE_API GroupScope {
 public:
  GroupScope(Comm& comm, ProcessGroup group);
  ~GroupScope();
  GroupScope(const GroupScope&) = delete;
  GroupScope& operator=(const GroupScope&) = delete;

 private:
  Comm& comm_;
  ProcessGroup before_;
};

}  // namespace brigade
