#include "torch_port/typed_wait.h"

#include "base/exception_text.h"
#include "torch_port/gloo_backend.h"

namespace brigade::torch_port {
namespace {

base::Cause failure_of(const std::exception& error) {
  if (dynamic_cast<const Error*>(&error)) return base::failure_of(error);
  base::Cause cause{.text = base::text_of(error)};
  cause.kind = base::classify(cause.text);
  return cause;
}

}  // namespace

base::Cause failure_of(const std::exception& error, c10d::ProcessGroup& group) {
  base::Cause cause = failure_of(error);
  if (!cause.rank) cause.rank = rank_named_in(group, cause.text);
  return cause;
}

void rethrow_typed(const std::exception& error, c10d::ProcessGroup& group,
                   const Number& number) {
  const auto* lost = dynamic_cast<const PeerLostError*>(&error);
  const bool ours = dynamic_cast<const Error*>(&error);
  if (ours && !(lost && !lost->rank())) throw;
  base::Cause cause = failure_of(error, group);
  if (cause.kind == Failure::other) throw;
  if (cause.rank) cause.rank = number(*cause.rank);
  std::rethrow_exception(base::make_error(cause));
}

std::exception_ptr typed(const std::exception_ptr& error) {
  if (!error) return error;
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& exception) {
    if (dynamic_cast<const Error*>(&exception)) return error;
    const base::Cause cause = failure_of(exception);
    return cause.kind == Failure::other ? error : base::make_error(cause);
  } catch (...) {
    return error;
  }
}

void wait(c10d::Work& work, std::chrono::milliseconds limit, c10d::ProcessGroup& group) {
  try {
    work.wait(limit);
  } catch (const std::exception& error) {
    rethrow_typed(error, group, [](int rank) { return rank; });
  }
}

}  // namespace brigade::torch_port
