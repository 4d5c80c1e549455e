// Large tensors in large pages. With pages of 4 kB a pass over a bucket mostly waits for
// address translation; in 2 MB pages PowerSGD's passes take half the time.
#pragma once
#include <ATen/core/Tensor.h>

namespace brigade::base {

// Asks Linux to put the tensor's memory into large pages, where it spans whole ones and the
// setting of transparent huge pages allows it ("always" or "madvise"). Keeps the contents;
// takes about as long as a copy. Otherwise does nothing.
void advise_huge_pages(const at::Tensor& tensor);

// As at::empty; large tensors on the CPU begin at a large page.
at::Tensor empty_in_huge_pages(at::IntArrayRef sizes, const at::TensorOptions& options);

}  // namespace brigade::base
