#include "hooks/stream_use.h"

#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace brigade {

void use_on_current_stream(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.is_cpu()) return;
  const c10::impl::VirtualGuardImpl device(tensor.device().type());
  tensor.record_stream(device.getStream(tensor.device()));
}

void use_here(at::Tensor& kept, c10::Device device) {
  if (kept.defined() && kept.device() != device) kept = kept.to(device);
  use_on_current_stream(kept);
}

}  // namespace brigade
