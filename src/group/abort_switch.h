// Ends what waits in a group, and in all groups made from it, at once.
#pragma once
#include <c10/util/intrusive_ptr.h>

#include <mutex>
#include <string>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

#include "torch_port/live_works.h"

namespace brigade::group {

// The sockets of one group: those that somebody accepted at `own`, and those that lead to
// one of `peers`. Each is an endpoint that a rank listens at, "127.0.0.1:4711".
struct GroupSockets {
  std::string own;
  std::vector<std::string> peers;
};

// Gloo's abort() does nothing, and a collective with a silent peer waits for its time
// limit. So the switch shuts the sockets themselves down: whoever waits for one, here or on
// the other side, gets an error within a moment. What gloo does not end all the same is
// given up (live_works.h). NCCL's communicators are aborted. Thread-safe.
class AbortSwitch {
 public:
  // What is added to a switch that has been thrown ends at once.
  void add(GroupSockets sockets);
  void add(const c10::intrusive_ptr<c10d::ProcessGroup>& group);
  // From then on throw_if_aborted() throws, and so do new groups. The first reason counts.
  void abort(const std::string& why);
  bool aborted() const;
  // Throws AbortedError with the reason.
  void throw_if_aborted() const;
  std::string why() const;
  // Of all groups that this switch ends.
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

// A part of a store in which nobody waits any longer once the switch is thrown.
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

// Aborts NCCL's communicators of these groups: kernels that wait for a peer end. All at
// once: one that waits on the device behind another's kernel could not end before it.
void abort_on_device(const std::vector<c10::intrusive_ptr<c10d::ProcessGroup>>& groups);

// Whether the groups whose store this is have an AbortSwitch.
bool can_be_aborted(const c10::intrusive_ptr<c10d::Store>& store);
// Why the groups whose store this is were aborted; empty: they were not.
std::string why_aborted(const c10::intrusive_ptr<c10d::Store>& store);

}  // namespace brigade::group
