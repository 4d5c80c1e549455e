// A worker's side of membership: it listens to the launcher, and joins generations.
#pragma once
#include <condition_variable>
#include <mutex>
#include <thread>

#include "brigade/elastic.h"
#include "group/generation.h"
#include "group/rendezvous.h"
#include "group/store/mailbox.h"

namespace brigade {

// A thread of its own reads the launcher's messages, so that a rank that waits in a
// collective learns that its generation is over.
struct ElasticJob::State {
  struct Assignment {
    int generation = -1;
    int rank = 0;
    std::vector<int> members;
    std::string why;  // the generation before has ended
    std::shared_ptr<group::AbortSwitch> abort;
  };

  // A job that never changes.
  explicit State(ProcessGroup fixed);
  State(const ElasticJobOptions& options, int number);
  ~State();
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  bool elastic() const { return mail_ != nullptr; }
  const ProcessGroup& group() const { return group_; }
  int generation() const;

  // Ends this rank's part in the generation that it is in; what waits in its groups fails,
  // on its peers too. `why`: what failed; empty: nothing did.
  void leave(const std::string& why);
  // Says that this rank waits, and gives its place in the next generation; none when all
  // training is finished. Throws TimeoutError, RendezvousError when the launcher is gone.
  std::optional<Assignment> wait_for_assignment(int64_t step, bool done);
  // Collective over the members. Afterwards group() is theirs. Throws when the generation
  // ends meanwhile.
  void join(const Assignment& place);
  // This rank has the state of the generation.
  void say_formed();
  // Whether the present generation is over; false before the first.
  bool aborted() const;
  bool newcomer_waits() const;

 private:
  void listen();
  void read(const std::string& text);
  void lose(const std::string& why);

  ProcessGroup group_;
  std::string backend_;
  std::chrono::milliseconds timeout_{};
  int device_ = 0;
  group::MeetingPoint point_;
  std::unique_ptr<group::WorkerMailbox> mail_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Assignment place_;   // in the last generation heard of
  Assignment joined_;  // in the generation that this rank is in, or was the last in
  bool place_is_new_ = false;
  bool wanted_ = false;
  bool finished_ = false;
  std::string lost_;  // why the launcher cannot be heard any more
  bool stop_ = false;
  std::thread listener_;
};

}  // namespace brigade
