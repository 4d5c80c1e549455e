#include "engine/failure/failure_store.h"

#include <chrono>
#include <random>
#include <thread>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "brigade/error.h"

namespace brigade::engine {
namespace {

// How long to listen for other ranks' beats: several intervals of the DeadlineThread. This
// rank beats meanwhile too, because others may listen at the same time.
constexpr std::chrono::milliseconds kListen{700};
constexpr int kBeats = 4;

}  // namespace

c10d::Store& FailureStore::store() const {
  if (!group_.store()) throw Error("the group has no store");
  return *group_.store();
}

base::Cause FailureStore::first_cause(const base::Cause& mine) {
  if (group_.size() == 1) return mine;
  try {
    return base::cause_from_json(
        store().compareSet(key(), std::string(), base::to_json(mine)));
  } catch (const std::exception&) {
    return mine;  // the store is gone as well
  }
}

std::optional<base::Cause> FailureStore::find() {
  try {
    if (store().check({key()})) return base::cause_from_json(store().get_to_str(key()));
  } catch (const std::exception&) {
    // There is no store; the collectives themselves will fail.
  }
  return std::nullopt;
}

void FailureStore::beat() {
  try {
    store().set(beat_key(group_.rank()), std::to_string(++beats_));
  } catch (const std::exception&) {
    // The store is gone; the collectives themselves will fail.
  }
}

std::vector<std::string> FailureStore::beats() {
  std::vector<std::string> found;
  for (int rank = 0; rank < group_.size(); ++rank) {
    const std::string key = beat_key(rank);
    found.push_back(store().check({key}) ? store().get_to_str(key) : "");
  }
  return found;
}

std::vector<bool> FailureStore::listen() {
  const auto before = beats();
  for (int i = 0; i < kBeats; ++i) {
    beat();
    std::this_thread::sleep_for(kListen / kBeats);
  }
  const auto after = beats();
  std::vector<bool> heard;
  for (int rank = 0; rank < group_.size(); ++rank)
    heard.push_back(before[rank] != after[rank]);
  return heard;
}

std::vector<int> FailureStore::beating_ranks() {
  if (group_.size() == 1) return {};
  try {
    const std::vector<bool> heard = listen();
    std::vector<int> ranks;
    for (int rank = 0; rank < group_.size(); ++rank) {
      if (heard[rank] && rank != group_.rank()) ranks.push_back(rank);
    }
    return ranks;
  } catch (const std::exception&) {
    return {};  // the store is gone
  }
}

void FailureStore::blame_silent_ranks(base::Cause& cause) {
  if (group_.size() == 1) return;
  try {
    const std::vector<bool> heard = listen();
    std::vector<int> silent;
    std::string names;
    for (int rank = 0; rank < group_.size(); ++rank) {
      if (heard[rank] || rank == group_.rank()) continue;
      silent.push_back(group_.number_in_job(rank));
      names += (names.empty() ? "" : ", ") + std::to_string(silent.back());
    }
    if (silent.empty()) return;
    if (silent.size() == 1) cause.rank = silent.front();
    cause.text += "; nothing is heard of rank " + names +
                  ": stopped, lost, or not in this backward pass." + kUnevenAdvice;
  } catch (const std::exception&) {
    // The store is gone as well.
  }
}

const std::string& FailureStore::identity() {
  std::call_once(identity_made_, [this] {
    std::random_device random;
    const std::string mine =
        name_ + "-" + std::to_string(random()) + "-" + std::to_string(random());
    identity_ = store().compareSet(name_ + "/identity", std::string(), mine);
  });
  return identity_;
}

void explain(base::Cause& cause, FailureStore& failures) {
  if (cause.kind == Failure::timeout) return failures.blame_silent_ranks(cause);
  if (cause.kind != Failure::peer_lost || !cause.rank) return;
  const std::string broken(base::phrase_in(cause.text));
  if (broken.empty()) return;  // it is our own text
  cause.text = "rank " + std::to_string(*cause.rank) + " is gone (" + broken +
               "): it has ended, or was lost." + kUnevenAdvice;
}

}  // namespace brigade::engine
