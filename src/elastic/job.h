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
    std::string why;  // why the generation before ended
    std::shared_ptr<group::AbortSwitch> abort;
  };

  // A job that is not elastic.
  explicit State(ProcessGroup fixed);
  State(const ElasticJobOptions& options, int number);
  ~State();
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  bool elastic() const { return mail_ != nullptr; }
  const ProcessGroup& group() const { return group_; }
  int generation() const;

  // Ends this rank's part in its generation. Collectives that wait in its groups fail, on
  // its peers too. `why`: the failure; empty: there was none.
  void leave(const std::string& why);
  // Reports that this rank waits. Returns its assignment in the next generation; none when
  // all training is finished. Throws TimeoutError; RendezvousError if the launcher is gone.
  std::optional<Assignment> wait_for_assignment(int64_t step, bool done);
  // Collective over the members; then group() is theirs. Throws if the generation ends.
  void join(const Assignment& place);
  // Reports that this rank has the generation's state.
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
  Assignment place_;   // in the last generation announced
  Assignment joined_;  // in this rank's generation, or its last
  bool place_is_new_ = false;
  bool wanted_ = false;
  bool finished_ = false;
  std::string lost_;  // why the launcher is out of reach
  bool stop_ = false;
  std::thread listener_;
};

}  // namespace brigade
