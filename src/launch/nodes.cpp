#include "launch/nodes.h"

#include <nlohmann/json.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "base/exception_text.h"
#include "group/network.h"
#include "launch/link_thread.h"
#include "launch/report.h"
#include "launch/store.h"

namespace brigade::launching {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

// The key under which a refused launcher of another job describes itself.
constexpr const char* kRefused = "refused";
// The interval at which a node sends a beat and reads those of others.
constexpr milliseconds kBeat{100};

std::string dump(const json& data) {
  return data.dump(-1, ' ', false, json::error_handler_t::replace);
}

std::string encode(const NodeState& state) {
  return dump({{"node_rank", state.node_rank},
               {"nodes", state.nodes},
               {"mark", state.job_id},
               {"host", state.host},
               {"workers", state.workers},
               {"attempt", state.attempt},
               {"phase", static_cast<int>(state.phase)},
               {"run_id", state.run_id},
               {"port", state.port},
               {"given_run_id", state.given_run_id},
               {"beat", state.beat}});
}

NodeState decode_state(const std::string& text) {
  const json data = json::parse(text);
  return {.node_rank = data.at("node_rank"),
          .nodes = data.at("nodes"),
          .job_id = data.at("mark"),
          .host = data.at("host"),
          .workers = data.at("workers"),
          .attempt = data.at("attempt"),
          .phase = static_cast<NodePhase>(data.at("phase").get<int>()),
          .run_id = data.at("run_id"),
          .port = data.at("port"),
          .given_run_id = data.at("given_run_id"),
          .beat = data.at("beat")};
}

std::string encode(const JobResult& verdict) {
  json data = {
      {"text", verdict.text}, {"exit_code", verdict.exit_code}, {"final", verdict.final}};
  if (verdict.failure) data["failure"] = to_json(*verdict.failure);
  return dump(data);
}

JobResult decode_verdict(const std::string& text) {
  const json data = json::parse(text);
  JobResult verdict{.text = data.at("text"),
                    .exit_code = data.at("exit_code"),
                    .final = data.at("final")};
  if (data.contains("failure")) verdict.failure = failure_from_json(data["failure"]);
  return verdict;
}

}  // namespace

bool NodeNews::all_in(int attempt, NodePhase phase) const {
  return missing(attempt, phase).empty();
}

std::string NodeNews::why_missing(int attempt, milliseconds limit) const {
  std::string never;
  std::string lost;
  for (size_t i = 0; i < nodes.size(); ++i) {
    const auto& node = nodes[i];
    if (node && node->attempt == attempt) continue;
    std::string& list = node ? lost : never;
    list += (list.empty() ? "node " : ", node ") + std::to_string(i);
    if (node) list += " (" + node->host + ")";
  }
  const std::string within = " within " + std::to_string(limit.count() / 1000) + " s";
  if (!lost.empty()) lost += " took part, was lost, and did not come back" + within;
  if (!never.empty()) never += " did not come" + within;
  return lost + (lost.empty() || never.empty() ? "" : "; ") + never +
         (refused.empty() ? "" : "; " + refused);
}

std::string NodeNews::missing(int attempt, NodePhase phase) const {
  std::string names;
  for (size_t i = 0; i < nodes.size(); ++i) {
    const auto& node = nodes[i];
    const bool there = node && node->attempt == attempt && node->phase >= phase;
    const bool left = node && phase == NodePhase::left && node->phase == phase;
    if (there || left) continue;
    names += (names.empty() ? "node " : ", node ") + std::to_string(i);
  }
  return names;
}

// Both threads use this under the mutex; `store` and below are the link thread's alone.
struct NodeLink::Shared : LinkThread {
  NodeState self;
  bool claiming = false;
  std::optional<JobResult> own_verdict;
  NodeNews news;

  std::string host;
  int port = 0;
  milliseconds limit;
  StoreOpener opener;
  c10::intrusive_ptr<c10d::Store> server;
  c10::intrusive_ptr<c10d::Store> store;
  bool introduced = false;
  // Why the store could not be reached at the last try; guarded by the mutex.
  std::string not_reached = "its address is being looked up";
  std::vector<std::pair<long, steady_clock::time_point>> beats;

  void loop();
  bool connect_store();
  bool introduce(const NodeState& state);
  void check_job(const NodeState& first, const NodeState& state);
  void talk_to_store();
  void hear(int node, const std::string& text);
  std::optional<std::string> read(const std::string& key);
};

std::optional<std::string> NodeLink::Shared::read(const std::string& key) {
  if (!store->check({key})) return std::nullopt;
  return store->get_to_str(key);
}

bool NodeLink::Shared::connect_store() {
  std::string why;
  server = opener(why);
  if (!server) {
    const std::scoped_lock lock(mutex);
    not_reached = why;
    return false;
  }
  store = c10::make_intrusive<c10d::PrefixStore>("brigade/launcher", server);
  const std::scoped_lock lock(mutex);
  not_reached.clear();
  return true;
}

// Comes before this launcher writes anything that the job there would take for its own.
void NodeLink::Shared::check_job(const NodeState& first, const NodeState& state) {
  try {
    check_run_ids(group::endpoint(host, port), first.given_run_id, state.given_run_id);
  } catch (const RendezvousError&) {
    const std::string text = "a launcher on " + state.host + " with the run id '" +
                             state.given_run_id + "' was refused, for this job's is '" +
                             first.given_run_id + "'";
    store->set(kRefused, std::vector<std::uint8_t>(text.begin(), text.end()));
    throw;
  }
}

// Takes the node rank; the first launcher to take one keeps it. Returns false while node 0,
// which must come first, is missing.
bool NodeLink::Shared::introduce(const NodeState& state) {
  if (state.node_rank > 0) {
    const auto first = read("node/0");
    // The launcher of an elastic job writes this key first.
    if (!first && server->check({"brigade/hosts/open"}))
      throw RendezvousError("the job at " + group::endpoint(host, port) +
                            " is elastic, and this launcher's is not; was it meant to say "
                            "--join, or --elastic?");
    if (!first) return false;
    check_job(decode_state(*first), state);
  }
  const std::string mine = encode(state);
  const std::string key = "node/" + std::to_string(state.node_rank);
  const auto held = store->compareSet(key, std::vector<std::uint8_t>{},
                                      std::vector<std::uint8_t>(mine.begin(), mine.end()));
  const NodeState holder = decode_state(std::string(held.begin(), held.end()));
  if (holder.job_id != state.job_id) {
    throw RendezvousError("node rank " + std::to_string(state.node_rank) +
                          " is taken by a launcher on " + holder.host +
                          "; give every host a --node-rank of its own");
  }
  introduced = true;
  return true;
}

void NodeLink::Shared::hear(int node, const std::string& text) {
  const NodeState state = decode_state(text);
  const auto now = steady_clock::now();
  auto& [beat, when] = beats[static_cast<size_t>(node)];
  if (beat != state.beat) beat = state.beat, when = now;
  const std::string name = "node " + std::to_string(node) + " (" + state.host + ")";
  const std::scoped_lock lock(mutex);
  if (state.nodes != self.nodes) {
    throw RendezvousError(name + " was started with --nnodes " +
                          std::to_string(state.nodes) + ", this one with " +
                          std::to_string(self.nodes));
  }
  if (now - when > limit && state.phase != NodePhase::left) {
    throw RendezvousError(
        name + " is lost: nothing was heard of it for " +
        std::to_string(limit.count() / 1000) +
        " s; is its host down, its launcher stopped, or the network cut?");
  }
  news.nodes[static_cast<size_t>(node)] = state;
}

void NodeLink::Shared::talk_to_store() {
  NodeState state;
  bool claim = false;
  std::optional<JobResult> verdict;
  {
    const std::scoped_lock lock(mutex);
    ++self.beat;
    state = self;
    claim = claiming;
    verdict = own_verdict;
  }
  if (!introduced && !introduce(state)) {
    const std::scoped_lock lock(mutex);
    last_heard = steady_clock::now();
    news.nodes[static_cast<size_t>(state.node_rank)] = state;
    return;
  }
  const std::string prefix = "attempt_" + std::to_string(state.attempt);
  if (claim) {
    const std::string rank = std::to_string(state.node_rank);
    store->compareSet(prefix + "/claim", std::vector<std::uint8_t>{},
                      std::vector<std::uint8_t>(rank.begin(), rank.end()));
  }
  if (verdict) {
    const std::string text = encode(*verdict);
    store->set(prefix + "/verdict", std::vector<std::uint8_t>(text.begin(), text.end()));
  }
  // This follows the claim, so that a node that sees the new state can see the claim, too.
  const std::string mine = encode(state);
  store->set("node/" + std::to_string(state.node_rank),
             std::vector<std::uint8_t>(mine.begin(), mine.end()));
  const auto claimed = read(prefix + "/claim");
  const auto decided = read(prefix + "/verdict");
  for (int node = 0; node < state.nodes; ++node) {
    if (const auto text = read("node/" + std::to_string(node))) hear(node, *text);
  }
  const auto refused = state.node_rank == 0 ? read(kRefused) : std::nullopt;
  const std::scoped_lock lock(mutex);
  last_heard = steady_clock::now();
  if (refused) news.refused = *refused;
  // If the next attempt has begun meanwhile, this is no news.
  if (self.attempt != state.attempt) return;
  if (claimed) news.claimed_by = std::stoi(*claimed);
  if (decided) news.verdict = decode_verdict(*decided);
}

void NodeLink::Shared::loop() {
  try {
    // One more round after the stop sends the last state to the others.
    for (bool last = false; !last;) {
      {
        const std::scoped_lock lock(mutex);
        last = stop;
      }
      if (store || (!last && connect_store())) talk_to_store();
      tell();
      std::unique_lock lock(mutex);
      if (!stop) changed.wait_for(lock, kBeat);
    }
  } catch (const std::exception& error) {
    const std::scoped_lock lock(mutex);
    const auto* ours = dynamic_cast<const Error*>(&error);
    news.lost = ours ? error.what()
                     : "the store of node 0 at " + host + ":" + std::to_string(port) +
                           " has gone: " + base::describe(error);
    tell();
  }
  store.reset();
  server.reset();
  opener = nullptr;
}

NodeLink::NodeLink(NodeState self, const LaunchOptions& options, StoreOpener opener,
                   milliseconds limit)
    : shared_(std::make_shared<Shared>()) {
  shared_->news.nodes.resize(static_cast<size_t>(self.nodes));
  shared_->beats.resize(static_cast<size_t>(self.nodes));
  shared_->self = std::move(self);
  shared_->host = options.master_addr;
  shared_->port = options.master_port;
  shared_->limit = limit;
  shared_->opener = std::move(opener);
  start_link(shared_);
}

NodeLink::~NodeLink() { shared_->end(); }

int NodeLink::fd() const { return shared_->event; }

NodeNews NodeLink::news() {
  shared_->quiet();
  const std::scoped_lock lock(shared_->mutex);
  NodeNews news = shared_->news;
  if (news.lost.empty() && steady_clock::now() - shared_->last_heard > shared_->limit) {
    const std::string store =
        "the store of node 0 at " + group::endpoint(shared_->host, shared_->port);
    const std::string limit = std::to_string(shared_->limit.count() / 1000) + " s";
    news.lost = shared_->not_reached.empty() ? store + " has not answered for " + limit
                                             : "cannot reach " + store + " within " +
                                                   limit + ": " + shared_->not_reached;
  }
  return news;
}

void NodeLink::join(int attempt, int port) {
  const std::scoped_lock lock(shared_->mutex);
  shared_->self.attempt = attempt;
  shared_->self.phase = NodePhase::joining;
  shared_->self.port = port;
  shared_->claiming = false;
  shared_->own_verdict.reset();
  shared_->news.claimed_by.reset();
  shared_->news.verdict.reset();
  shared_->changed.notify_all();
}

void NodeLink::enter(NodePhase phase) {
  const std::scoped_lock lock(shared_->mutex);
  shared_->self.phase = phase;
  shared_->changed.notify_all();
}

void NodeLink::claim() {
  const std::scoped_lock lock(shared_->mutex);
  shared_->claiming = true;
  shared_->changed.notify_all();
}

void NodeLink::publish(const JobResult& verdict) {
  const std::scoped_lock lock(shared_->mutex);
  shared_->own_verdict = verdict;
  shared_->changed.notify_all();
}

}  // namespace brigade::launching
