// Large memory in large pages. A pass over a bucket is mostly waiting for address
// translation where pages have 4 kB: in 2 MB pages PowerSGD's passes take half the time.
#pragma once
#include <ATen/core/Tensor.h>

namespace brigade::base {

// Asks Linux to bring the whole large pages inside of the tensor's memory together, where
// it has any and the system's setting of transparent huge pages allows it ("always" or
// "madvise"). Contents stay; takes about as long as a copy. Otherwise does nothing.
void advise_huge_pages(const at::Tensor& tensor);

// As at::empty; large ones on the CPU begin with a large page.
at::Tensor empty_in_huge_pages(at::IntArrayRef sizes, const at::TensorOptions& options);

}  // namespace brigade::base
