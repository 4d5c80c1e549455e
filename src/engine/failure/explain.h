// What a collective's error says to people.
#pragma once
#include "engine/failure/failure_store.h"

namespace brigade::engine {

// Says in the text who did not take part, where that can be told: the rank that a broken
// connection leads to, or, at a time limit, those that nothing is heard of. Does not decide
// what happened; may listen to the others for less than a second.
void explain(base::Cause& cause, FailureStore& failures);

}  // namespace brigade::engine
