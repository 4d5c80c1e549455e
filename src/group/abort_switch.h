// Ends all waiting in a group, and in all groups made from it, at once.
#pragma once
#include <c10/util/intrusive_ptr.h>

#include <mutex>
#include <string>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

#include "torch_port/live_works.h"

namespace brigade::group {

// The sockets of one group: those accepted at `own`, and those connected to one of `peers`.
// Each is an endpoint at which a rank listens, "127.0.0.1:4711".
struct GroupSockets {
  std::string own;
  std::vector<std::string> peers;
};

// Gloo's abort() does nothing, and a collective with a silent peer waits for its time
// limit. So the switch shuts the sockets themselves down: waiting on either side fails
// within a moment. Collectives that gloo still does not end are failed by LiveWorks. NCCL's
// communicators are aborted. Thread-safe.
class AbortSwitch {
 public:
  // Sockets and groups that are added after abort() end at once.
  void add(GroupSockets sockets);
  void add(const c10::intrusive_ptr<c10d::ProcessGroup>& group);
  // From then on throw_if_aborted() throws, and so do new groups. The first reason is kept.
  void abort(const std::string& why);
  bool aborted() const;
  // Throws AbortedError with the reason.
  void throw_if_aborted() const;
  std::string why() const;
  // The works of all groups that this switch ends.
  const std::shared_ptr<torch_port::LiveWorks>& works() const { return works_; }

 private:
  mutable std::mutex mutex_;
  bool aborted_ = false;
  std::string why_;
  std::vector<GroupSockets> sockets_;
  const std::shared_ptr<torch_port::LiveWorks> works_ =
      std::make_shared<torch_port::LiveWorks>();
  std::vector<c10::weak_intrusive_ptr<c10d::ProcessGroup>> groups_;
};

// A prefix of a store in which waiting ends when the switch aborts.
class AbortableStore : public c10d::PrefixStore {
 public:
  AbortableStore(const std::string& prefix, c10::intrusive_ptr<c10d::Store> store,
                 std::shared_ptr<AbortSwitch> abort);
  using PrefixStore::get;
  std::vector<uint8_t> get(const std::string& key) override;
  void wait(const std::vector<std::string>& keys) override;
  void wait(const std::vector<std::string>& keys,
            const std::chrono::milliseconds& timeout) override;
  std::vector<std::vector<uint8_t>> multiGet(const std::vector<std::string>& keys) override;
  c10::intrusive_ptr<c10d::Store> clone() override;
  const AbortSwitch& abort_switch() const { return *abort_; }

 private:
  const std::shared_ptr<AbortSwitch> abort_;
};

// Aborts NCCL's communicators of these groups, which ends kernels that wait for a peer. It
// aborts all at once, because one may wait on the device behind another's kernel.
void abort_on_device(const std::vector<c10::intrusive_ptr<c10d::ProcessGroup>>& groups);

// Whether the groups with this store have an AbortSwitch.
bool can_be_aborted(const c10::intrusive_ptr<c10d::Store>& store);
// Why the groups with this store were aborted; empty: they were not.
std::string why_aborted(const c10::intrusive_ptr<c10d::Store>& store);

}  // namespace brigade::group
