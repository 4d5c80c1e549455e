#include "launch/host_link.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "base/exception_text.h"
#include "brigade/error.h"
#include "launch/link_thread.h"
#include "launch/store.h"

namespace brigade::launching {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// The interval at which a follower sends a beat and reads messages.
constexpr milliseconds kHostBeat{100};

// Set once followers may come; its value is the run's id.
constexpr const char* kOpen = "open";
// Holds the run's id if the user gave it, else an empty text.
constexpr const char* kGivenRunId = "given_run_id";
constexpr const char* kFollowers = "guests";
constexpr const char* kRanks = "ranks";

c10::intrusive_ptr<c10d::Store> part_of(const c10::intrusive_ptr<c10d::Store>& store) {
  return c10::make_intrusive<c10d::PrefixStore>("brigade/hosts", store);
}

}  // namespace

HostMessages::HostMessages(c10::intrusive_ptr<c10d::Store> store, int ranks,
                           const std::string& run_id, const std::string& given_run_id)
    : store_(part_of(store)), mail_(store_) {
  store_->set(kGivenRunId, given_run_id);
  store_->add(kRanks, ranks);
  store_->set(kOpen, run_id);
}

std::vector<std::pair<int, std::string>> HostMessages::hear(Time now) {
  const auto came = static_cast<int>(store_->add(kFollowers, 0));
  while (known_ < came) {
    mail_.add(++known_);
    heard_[known_] = now;
  }
  auto messages = mail_.receive();
  for (const auto& [follower, text] : messages) heard_[follower] = now;
  std::erase_if(messages, [](const auto& message) { return message.second == "beat"; });
  return messages;
}

milliseconds HostMessages::silence(int follower, Time now) const {
  return std::chrono::duration_cast<milliseconds>(now - heard_.at(follower));
}

void HostMessages::forget(int follower) {
  mail_.remove(follower);
  heard_.erase(follower);
}

// ---- the follower ----------------------------------------------------------------------

// The mutex guards members up to the empty line; the rest is the link thread's alone.
struct HostLink::Shared : LinkThread {
  std::optional<Entry> entry;
  std::vector<std::string> outgoing;
  std::vector<std::string> incoming;
  std::string lost;
  std::string not_reached = "its address is being looked up";

  Self self;
  std::string address;
  milliseconds limit;
  StoreOpener opener;
  c10::intrusive_ptr<c10d::Store> server;
  c10::intrusive_ptr<c10d::Store> store;  // a prefix store over `server`
  std::unique_ptr<group::WorkerMailbox> mail;

  void loop();
  bool enter();
  void talk_to_store(bool last);
};

// Returns false as long as the first host is not ready.
bool HostLink::Shared::enter() {
  std::string why;
  if (!server) server = opener(why);
  if (server && !store) store = part_of(server);
  if (store && !store->check({kOpen})) {
    // The launcher of a static job writes this key first.
    if (server->check({"brigade/launcher/node/0"}))
      throw RendezvousError("the job at " + address +
                            " takes no other hosts; was it started with --elastic and "
                            "--nnodes MIN:MAX?");
    why = "it is not ready yet";
  }
  if (!why.empty() || !store) {
    const std::scoped_lock lock(mutex);
    not_reached = why;
    return false;
  }
  check_run_ids(address, store->get_to_str(kGivenRunId), self.given_run_id);
  Entry found;
  found.run_id = store->get_to_str(kOpen);
  found.follower = static_cast<int>(store->add(kFollowers, 1));
  found.first_rank = static_cast<int>(store->add(kRanks, self.workers)) - self.workers;
  mail = std::make_unique<group::WorkerMailbox>(store, found.follower);
  mail->send("hello " + std::to_string(self.workers) + " " + self.host);
  const std::scoped_lock lock(mutex);
  not_reached.clear();
  last_heard = steady_clock::now();
  entry = found;
  return true;
}

void HostLink::Shared::talk_to_store(bool last) {
  std::vector<std::string> texts;
  {
    const std::scoped_lock lock(mutex);
    texts.swap(outgoing);
  }
  texts.emplace_back(last ? "bye" : "beat");
  for (const std::string& text : texts) mail->send(text);
  std::vector<std::string> heard;
  while (auto text = mail->receive_now()) heard.push_back(std::move(*text));
  const std::scoped_lock lock(mutex);
  last_heard = steady_clock::now();
  incoming.insert(incoming.end(), heard.begin(), heard.end());
}

void HostLink::Shared::loop() {
  try {
    for (bool last = false; !last;) {
      {
        const std::scoped_lock lock(mutex);
        last = stop;
      }
      if (mail || (!last && enter())) talk_to_store(last);
      tell();
      std::unique_lock lock(mutex);
      if (!stop && outgoing.empty()) changed.wait_for(lock, kHostBeat);
    }
  } catch (const std::exception& error) {
    const std::scoped_lock lock(mutex);
    lost = dynamic_cast<const Error*>(&error) ? error.what()
                                              : "the store of the job at " + address +
                                                    " has gone: " + base::describe(error);
    tell();
  }
  mail.reset();
  store.reset();
  server.reset();
  opener = nullptr;
}

HostLink::HostLink(Self self, std::string address, StoreOpener opener, milliseconds limit)
    : shared_(std::make_shared<Shared>()) {
  shared_->self = std::move(self);
  shared_->address = std::move(address);
  shared_->opener = std::move(opener);
  shared_->limit = limit;
  start_link(shared_);
}

HostLink::~HostLink() { shared_->end(); }

int HostLink::fd() const { return shared_->event; }

std::optional<HostLink::Entry> HostLink::entry() const {
  const std::scoped_lock lock(shared_->mutex);
  return shared_->entry;
}

void HostLink::say(std::string text) {
  const std::scoped_lock lock(shared_->mutex);
  shared_->outgoing.push_back(std::move(text));
  shared_->changed.notify_all();
}

std::vector<std::string> HostLink::hear() {
  shared_->quiet();
  const std::scoped_lock lock(shared_->mutex);
  return std::exchange(shared_->incoming, {});
}

std::string HostLink::lost() const {
  const std::scoped_lock lock(shared_->mutex);
  if (!shared_->lost.empty()) return shared_->lost;
  if (steady_clock::now() - shared_->last_heard <= shared_->limit) return {};
  const std::string job = "the store of the job at " + shared_->address;
  const std::string within = std::to_string(shared_->limit.count() / 1000) + " s";
  return shared_->not_reached.empty()
             ? job + " has not answered for " + within +
                   "; is its host down, its launcher stopped, or the network cut?"
             : "cannot join the job at " + shared_->address + " within " + within + ": " +
                   shared_->not_reached;
}

}  // namespace brigade::launching
