// Runs a native hook over a group of torch.distributed: behind a Reducer of Python's DDP,
// or called bucket by bucket as a comm hook.
#pragma once
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/comm.hpp>
#include <utility>
#include <vector>

#include "engine/bucket_layout.h"
#include "engine/engine.h"
#include "engine/reducer_hook.h"
#include "hook_check.h"
#include "interruptible.h"

namespace c10d {
class Reducer;
}

namespace brigade::python {

using FuturePtr = c10::intrusive_ptr<c10::ivalue::Future>;

// Collective over `group`: makes a group for tensors of `device` in it. Keeps its backend
// and its store alive, not the group itself.
ProcessGroup adopt(c10d::ProcessGroup& group, c10::DeviceType device);
// The same for texts only, for which any backend will do.
ProcessGroup adopt_any(c10d::ProcessGroup& group);

class FutureLimit;

// Has threads, which must end before the interpreter does.
class Closeable {
 public:
  Closeable(const Closeable&) = delete;
  Closeable& operator=(const Closeable&) = delete;
  // Ends the threads; work under way fails. A second call does nothing.
  virtual void close() = 0;
  // Closes all that exist.
  static void close_all();

 protected:
  Closeable();
  // REQUIRES: the derived class's destructor has called not_open().
  virtual ~Closeable() = default;
  void not_open();
};

// Thread-safe. No function here needs the GIL, and none may be called with it.
class NativeHook : public Closeable {
 public:
  // Waits for nobody: the ranks of `group` connect at the first bucket. Does not keep the
  // group alive.
  NativeHook(c10d::ProcessGroup& group, c10::DeviceType device, std::shared_ptr<Hook> hook);
  ~NativeHook() override;

  // Parameters without a name are numbered in the order in which they come.
  void set_names(const std::vector<std::pair<at::Tensor, std::string>>& names);
  // Tells the hook about each backward pass before it begins.
  void set_pass(const HookPass& pass);
  // Must be called between iterations. Throws HookError once anything has failed.
  void set_hook(std::shared_ptr<Hook> hook);
  std::shared_ptr<Hook> hook() const;
  FuturePtr run(const c10d::GradBucket& bucket);
  // The same for a bucket that comes without its Reducer. For each new kind of bucket all
  // ranks first compare what it holds.
  FuturePtr run_alone(const c10d::GradBucket& bucket);
  // Collective. Throws MismatchError unless all ranks have the same buckets.
  void check_same(const engine::Buckets& buckets);
  HookStats stats() const;
  void close() override;
  // The same hook, for the same model, over another group.
  std::shared_ptr<NativeHook> over(c10d::ProcessGroup& group, c10::DeviceType device) const;
  // The engine, once the ranks have connected; else null.
  std::shared_ptr<engine::Engine> engine() const;

 private:
  // Collective in its first call.
  std::shared_ptr<engine::Engine> connect();
  std::vector<std::string> names_of(const c10d::GradBucket& bucket);

  const c10::weak_intrusive_ptr<c10d::ProcessGroup> group_;
  const c10::DeviceType device_;
  std::mutex connecting_;  // locked before mutex_

  mutable std::mutex mutex_;
  std::shared_ptr<Hook> hook_;
  std::shared_ptr<engine::Engine> engine_;
  bool closed_ = false;
  engine::ParameterNames names_;
  HookPass pass_;
  std::atomic<int> layouts_{0};   // compared so far
  std::set<std::string> agreed_;  // layouts of buckets that came alone
};

// Runs the buckets of a Reducer, for as long as that lives, with the current hook.
class HookSlot {
 public:
  using Group = c10d::ProcessGroup;
  // Sets a NativeHook or any other comm hook. `group`: the Reducer's, for a NativeHook that
  // follows the Reducer to another one (DDP._update_process_group); null: the hook keeps
  // its group.
  void put(std::shared_ptr<NativeHook> reduction, Group* group);
  void put(std::shared_ptr<c10d::CommHookInterface> other, std::string name);
  // Tells the other ranks of the model's group which hook was set; the next pass checks
  // that they have set the same. See HookCheck.
  void announce(Group& group, const std::string& model, const std::string& hook);
  std::shared_ptr<NativeHook> reduction() const;
  const std::shared_ptr<engine::ReducerHook> reducer_hook =
      std::make_shared<engine::ReducerHook>();

  FuturePtr run(c10d::GradBucket& bucket, c10d::Reducer& reducer);
  // Whether the calling code is this slot's hook.
  bool runs_here() const;
  at::Tensor result_of(const c10::IValue& value);

 private:
  std::shared_ptr<c10d::CommHookInterface> other() const;
  FuturePtr run_other(c10d::GradBucket& bucket, c10d::Reducer& reducer);
  void follow(const c10::intrusive_ptr<Group>& group, c10::DeviceType device);
  void check(const c10d::GradBucket& bucket, c10d::Reducer& reducer);

  mutable std::mutex mutex_;
  // Checks the hook that was set since the last pass, and the group that was told of it.
  std::unique_ptr<HookCheck> check_;
  std::optional<c10::weak_intrusive_ptr<Group>> announced_to_;
  std::shared_ptr<NativeHook> reduction_;
  // Weak, so that destroy_process_group() can end it. Empty: nothing to follow.
  std::optional<c10::weak_intrusive_ptr<Group>> followed_;
  std::shared_ptr<c10d::CommHookInterface> other_;
  std::string name_of_other_;
  std::shared_ptr<FutureLimit> limit_;  // for the futures of other_
  InterruptibleWait wait_;              // used only under the Reducer's lock
};

// The time limit of a group's collectives.
std::chrono::milliseconds timeout_of(c10d::ProcessGroup& group);

// Throws if the Reducer has a hook already.
void attach(c10d::Reducer& reducer, std::shared_ptr<HookSlot> slot);

}  // namespace brigade::python
