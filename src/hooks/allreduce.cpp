#include "engine/average.h"
#include "hooks/dense.h"

namespace brigade {
namespace {

Task<at::Tensor> noop(Bucket bucket, Comm&) { co_return bucket.buffer(); }

}  // namespace

std::shared_ptr<Hook> make_allreduce() { return std::make_shared<engine::Average>(); }
std::shared_ptr<Hook> make_noop() { return make_hook("noop", noop); }

}  // namespace brigade
