#include "engine/failure/explain.h"

namespace brigade::engine {

void explain(base::Cause& cause, FailureStore& failures) {
  if (cause.kind == Failure::timeout) return failures.blame_silent_ranks(cause);
  if (cause.kind != Failure::peer_lost || !cause.rank) return;
  const std::string broken(base::phrase_in(cause.text));
  if (broken.empty()) return;  // it is our own text
  cause.text = "rank " + std::to_string(*cause.rank) + " is gone (" + broken +
               "): it has ended, or was lost." + kUnevenAdvice;
}

}  // namespace brigade::engine
