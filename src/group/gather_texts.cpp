#include <cstdio>

#include "base/exception_text.h"
#include "brigade/error.h"
#include "group/process_group_state.h"

namespace brigade::group {
namespace {

using Clock = std::chrono::steady_clock;

// "rank 2", "ranks 1, 2 and 5"; a long list is cut.
std::string name_ranks(const std::vector<int>& ranks) {
  constexpr size_t kShown = 16;
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  const size_t shown = std::min(ranks.size(), kShown);
  for (size_t i = 0; i < shown; ++i) {
    if (i > 0) text += i + 1 == ranks.size() ? " and " : ", ";
    text += std::to_string(ranks[i]);
  }
  return shown < ranks.size()
             ? text + " and " + std::to_string(ranks.size() - shown) + " more"
             : text;
}

class TextGathering {
 public:
  TextGathering(ProcessGroup::State& state, const std::string& what,
                std::chrono::milliseconds timeout)
      : state_(state),
        store_(*state.store),
        what_(what),
        timeout_(timeout),
        number_(state.gathers++),
        prefix_("gather/" + std::to_string(number_) + "/") {
    for (int rank = 0; rank < state.size; ++rank)
      keys_.push_back(key(std::to_string(rank)));
  }

  std::vector<std::string> run(const std::string& mine) {
    try {
      store_.set(keys_[state_.rank], header() + mine);
      wait_for_all();
      auto texts = read();
      for (int rank = 0; rank < state_.size; ++rank) strip(rank, texts[rank]);
      leave();
      return texts;
    } catch (const c10::Error& error) {
      throw RendezvousError("lost the store during '" + what_ +
                            "': " + base::cause_of(error));
    }
  }

 private:
  std::string key(const std::string& last) const { return prefix_ + last; }

  void wait_for_all() {
    try {
      store_.wait(keys_, timeout_);
    } catch (const c10::DistNetworkError&) {
      throw;
    } catch (const c10::Error&) {
      std::vector<int> missing;
      for (int rank = 0; rank < state_.size; ++rank) {
        if (!store_.check({keys_[rank]})) missing.push_back(state_.world_ranks[rank]);
      }
      // They arrived during the check, but the limit has passed.
      const std::string who = missing.empty() ? "some ranks" : name_ranks(missing);
      throw TimeoutError(what_ + ": " + who + " of " + std::to_string(state_.size) +
                         " did not come within " + in_seconds(timeout_) +
                         // All ranks were there when the group was made.
                         (number_ > 0
                              ? "; all had met before: stopped, lost, or elsewhere in the "
                                "program"
                              : ""));
    }
  }

  std::vector<std::string> read() {
    std::vector<std::string> texts;
    if (store_.hasExtendedApi()) {
      for (const auto& value : store_.multiGet(keys_))
        texts.emplace_back(value.begin(), value.end());
    } else {
      for (const std::string& each : keys_) texts.push_back(store_.get_to_str(each));
    }
    return texts;
  }

  // The header has the values that must be equal on all ranks; the text follows.
  std::string header() const {
    return what_ + " of " + std::to_string(state_.size) + " ranks\n";
  }

  void strip(int rank, std::string& text) const {
    const std::string theirs = text.substr(0, text.find('\n') + 1);
    const std::string mine = header();
    if (theirs != mine) {
      throw MismatchError("rank " + std::to_string(state_.world_ranks[state_.rank]) +
                          " is at '" + mine.substr(0, mine.size() - 1) + "', rank " +
                          std::to_string(state_.world_ranks[rank]) + " at '" +
                          theirs.substr(0, theirs.size() - 1) +
                          "': expected all ranks to make the same calls in the same order");
    }
    text.erase(0, mine.size());
  }

  // After reading, a rank adds its mark, a bit of its own, to a counter, so that the ranks
  // which have not read can be named. In groups too large for bits it adds one.
  bool has_bits() const { return state_.size < 63; }
  int64_t mark_of(int rank) const { return has_bits() ? int64_t{1} << rank : 1; }
  int64_t all_marks() const { return has_bits() ? mark_of(state_.size) - 1 : state_.size; }

  // On rank 0: the ranks without a mark. If all have read, the last one, another rank, has
  // not cleaned up.
  std::string without_mark() {
    if (!has_bits()) return "a rank";
    const int64_t marks = store_.add(key("read"), 0);
    const bool all_read = marks == all_marks();
    std::vector<int> missing;
    for (int rank = 1; rank < state_.size; ++rank) {
      if (all_read || (marks & mark_of(rank)) == 0)
        missing.push_back(state_.world_ranks[rank]);
    }
    return (all_read && missing.size() > 1 ? "one of " : "") + name_ranks(missing);
  }

  // The last reader cleans up. Rank 0 waits for that, and removes the counter itself.
  void leave() {
    const bool last = store_.add(key("read"), mark_of(state_.rank)) == all_marks();
    if (last) {
      for (const std::string& each : keys_) store_.deleteKey(each);
      if (state_.rank != 0) store_.set(key("over"), std::string("1"));
    } else if (state_.rank == 0) {
      wait_for_last();
    }
    if (state_.rank == 0) store_.deleteKey(key("read"));
  }

  void wait_for_last() {
    try {
      store_.wait({key("over")}, timeout_);
    } catch (const c10::DistNetworkError&) {
      throw;
    } catch (const c10::Error&) {
      throw TimeoutError(what_ + ": " + without_mark() +
                         " came, but did not go on within " + in_seconds(timeout_));
    }
    store_.deleteKey(key("over"));
  }

  ProcessGroup::State& state_;
  c10d::Store& store_;
  const std::string& what_;
  const std::chrono::milliseconds timeout_;
  const int number_;  // counts this group's gatherings
  const std::string prefix_;
  std::vector<std::string> keys_;
};

}  // namespace

std::string in_seconds(std::chrono::milliseconds time) {
  char text[32];
  std::snprintf(text, sizeof text, "%g s", static_cast<double>(time.count()) / 1000);
  return text;
}

std::vector<std::string> gather_texts(ProcessGroup::State& state, const std::string& what,
                                      const std::string& mine,
                                      std::chrono::milliseconds timeout) {
  if (state.size == 1) return {mine};
  return TextGathering(state, what, timeout).run(mine);
}

}  // namespace brigade::group
