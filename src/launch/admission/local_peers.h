// Who is at the other end of a connection from this host: a process of the job, or not.
#pragma once
#include <sys/types.h>

#include <map>
#include <set>
#include <string>

namespace brigade::launching {

// A process is of the job when it is this one, descends from it, or has the same user and
// the job's mark in its environment (WorkerFamily). The kernel says which process holds a
// socket: no worker has to prove anything. For one thread.
class LocalPeers {
 public:
  explicit LocalPeers(std::string mark) : mark_(std::move(mark)) {}

  struct Answer {
    bool member = false;
    // Nobody holds the other end any more, or it is on another host.
    bool gone = false;
    // Who holds it.
    uid_t user = 0;
  };
  // `connection` is an accepted TCP socket.
  Answer ask(int connection);

 private:
  void look_for_members();
  void look_for_sockets();

  std::string mark_;
  // And when they were started: the number of one that has ended may be another's.
  std::map<pid_t, unsigned long long> members_;
  // Of the members' sockets, as last seen.
  std::set<unsigned long> inodes_;
  // Users of members whose descriptors this process may not see.
  std::set<uid_t> unseen_;
};

}  // namespace brigade::launching
