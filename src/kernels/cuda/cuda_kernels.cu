// The module's table.
#include "kernels/cuda/affine_whole.cuh"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/int4.cuh"
#include "kernels/cuda/low_rank.cuh"

namespace brigade::kernels {
namespace cuda {
namespace {

template <class Format>
int narrow_to(const float* src, float scale, std::uint16_t* dst, std::size_t size,
              void* stream) {
  return encode<Format>(src, scale, nullptr, nullptr, dst, size, stream);
}

int narrow(Half half, const float* src, float scale, std::uint16_t* dst, std::size_t size,
           void* stream) {
  return half == Half::fp16 ? narrow_to<Fp16Format>(src, scale, dst, size, stream)
                            : narrow_to<Bf16Format>(src, scale, dst, size, stream);
}

int widen(Half half, const std::uint16_t* src, float* dst, std::size_t size, bool add,
          void* stream) {
  return half == Half::fp16 ? decode<Fp16Format>(nullptr, src, dst, size, add, stream)
                            : decode<Bf16Format>(nullptr, src, dst, size, add, stream);
}

int reduce_half(Half half, Messages messages, OwnerStep reduction, void* stream) {
  return half == Half::fp16 ? reduce<Fp16Format>(messages, reduction, stream)
                            : reduce<Bf16Format>(messages, reduction, stream);
}

int int8_encode(const float* src, float factor, float* residual, float* scales,
                std::int8_t* codes, std::size_t size, void* stream) {
  return encode<Int8Format>(src, factor, residual, scales,
                            reinterpret_cast<std::uint8_t*>(codes), size, stream);
}
int int8_decode(const float* scales, const std::int8_t* codes, float* dst, std::size_t size,
                bool add, void* stream) {
  return decode<Int8Format>(scales, reinterpret_cast<const std::uint8_t*>(codes), dst, size,
                            add, stream);
}

const char* error_text(int error) {
  return cudaGetErrorString(static_cast<cudaError_t>(error));
}

// All kernels are compiled for the same architectures, so one stands for all.
__global__ void nothing() {}

int usable() {
  cudaFuncAttributes attributes;
  const cudaError_t error = cudaFuncGetAttributes(&attributes, nothing);
  if (error != cudaSuccess) (void)cudaGetLastError();  // later calls must not get it
  return static_cast<int>(error);
}

}  // namespace
}  // namespace cuda

extern "C" const CudaKernels* brigade_cuda_kernels() {
  static const CudaKernels table{
      .version = kCudaKernelsVersion,
      .error_text = cuda::error_text,
      .usable = cuda::usable,
      .narrow = cuda::narrow,
      .widen = cuda::widen,
      .reduce_half = cuda::reduce_half,
      .int8_encode = cuda::int8_encode,
      .int8_decode = cuda::int8_decode,
      .reduce_int8 = cuda::reduce<cuda::Int8Format>,
      .int4_encode = cuda::int4_encode,
      .int4_decode = cuda::int4_decode,
      .reduce_int4 = cuda::reduce_int4,
      .affine_encode = cuda::encode<cuda::AffineFormat>,
      .affine_decode = cuda::decode<cuda::AffineFormat>,
      .reduce_affine = cuda::reduce<cuda::AffineFormat>,
      .affine_whole_encode = cuda::encode_whole,
      .affine_whole_decode = cuda::decode<cuda::AffineFormat, true>,
      .reduce_affine_whole = cuda::reduce_whole,
      .low_rank_project = cuda::low_rank_project,
      .low_rank_project_back = cuda::low_rank_project_back,
      .low_rank_settle = cuda::low_rank_settle,
      .low_rank_rebuild = cuda::low_rank_rebuild,
      .low_rank_orthonormalize = cuda::low_rank_orthonormalize,
  };
  return &table;
}

}  // namespace brigade::kernels
