// The CPU kernels' twins for CUDA: the same bytes on the wire, bit for bit, in one pass
// over memory each. They are compiled by nvcc into a module of its own, libbrigade_cuda.so,
// which codecs load when they first see a CUDA tensor.
//
// All of them launch on `stream` (a cudaStream_t) of the current device and return at once:
// 0, or the cudaError_t of the launch. They allocate nothing, wait for nothing, and use no
// atomics, so every run gives the same bits. Memory has the alignment of its elements; 16
// bytes for floats and 4 for codes make them quicker. Zero elements are fine.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/affine_u8.h"
#include "kernels/low_rank.h"

namespace brigade::kernels {

enum class Half : int { fp16, bf16 };

// Messages of several ranks, all alike: the k-th begins `stride` bytes behind the one
// before it, and its codes `codes_at` bytes behind its beginning.
struct Messages {
  const std::uint8_t* first;
  std::size_t stride;
  std::size_t codes_at;
  int count;
};

// The owner's part of an exchange, in one pass: sum = own + decoded messages, in order;
// p = sum * (1 / divisor) + residual / divisor; headers and codes become p's message, and
// residual = (p - decoded) * divisor.
struct Reduction {
  const float* own;
  float* residual;  // may be null
  int divisor;
  void* headers;  // of the message that is made
  void* codes;
  std::size_t size;
};

// Changes with the table, with what its functions take, or with a message's bytes.
inline constexpr int kCudaKernelsVersion = 3;

struct CudaKernels {
  // Module and library must have the same.
  int version;
  const char* (*error_text)(int error);

  // cast.h
  int (*narrow)(Half half, const float* src, float scale, std::uint16_t* dst,
                std::size_t size, void* stream);
  int (*widen)(Half half, const std::uint16_t* src, float* dst, std::size_t size, bool add,
               void* stream);
  int (*reduce_half)(Half half, Messages messages, Reduction reduction, void* stream);

  // int8_block.h; `residual` may be null
  int (*int8_encode)(const float* src, float factor, float* residual, float* scales,
                     std::int8_t* codes, std::size_t size, void* stream);
  int (*int8_decode)(const float* scales, const std::int8_t* codes, float* dst,
                     std::size_t size, bool add, void* stream);
  int (*reduce_int8)(Messages messages, Reduction reduction, void* stream);

  // int4_block.h; `residual` may be null, codes are aligned to 4 bytes
  int (*int4_encode)(const float* src, float factor, float* residual, float* steps,
                     std::uint8_t* codes, std::size_t size, void* stream);
  int (*int4_decode)(const float* steps, const std::uint8_t* codes, float* dst,
                     std::size_t size, bool add, void* stream);
  int (*reduce_int4)(Messages messages, Reduction reduction, void* stream);

  // affine_u8.h in blocks of 512
  int (*affine_encode)(const float* src, float factor, float* residual,
                       AffineHeader* headers, std::uint8_t* codes, std::size_t size,
                       void* stream);
  int (*affine_decode)(const AffineHeader* headers, const std::uint8_t* codes, float* dst,
                       std::size_t size, bool add, void* stream);
  int (*reduce_affine)(Messages messages, Reduction reduction, void* stream);

  // affine_u8.h with one block for all values: two passes. `scratch` has
  // kAffineScratchBytes.
  int (*affine_whole_encode)(const float* src, float factor, float* residual,
                             AffineHeader* header, std::uint8_t* codes, std::size_t size,
                             void* scratch, void* stream);
  int (*affine_whole_decode)(const AffineHeader* header, const std::uint8_t* codes,
                             float* dst, std::size_t size, bool add, void* stream);

  // low_rank.h, but for its bits, with Q as columns x rank. `sum` may be null, and so may
  // last_p, both with the same meaning as there. `partial` has parts * columns * rank
  // floats; not needed for one part.
  int (*low_rank_project)(LowRankShape shape, const float* m, float* sum,
                          const float* last_p, const float* last_q, const float* q,
                          float* p, void* stream);
  int (*low_rank_project_back)(LowRankShape shape, int parts, const float* m,
                               const float* p, float* partial, float* q, void* stream);
  int (*low_rank_rebuild)(LowRankShape shape, float* m, const float* p, const float* q,
                          void* stream);
  // Unless `check`, one float on the device, is finite: undoes what low_rank_project did to
  // `sum`, up to rounding.
  int (*low_rank_take_back)(const float* check, const float* m, float* sum,
                            std::size_t size, void* stream);
  // Of several matrices, one behind the other; rank is 1 … kMostRank.
  int (*low_rank_orthonormalize)(std::size_t matrices, std::size_t rows, std::size_t rank,
                                 float* columns, double epsilon, void* stream);
};

inline constexpr std::size_t kAffineScratchBytes = std::size_t{8} << 10;

// What the module exports.
extern "C" [[gnu::visibility("default")]] const CudaKernels* brigade_cuda_kernels();

}  // namespace brigade::kernels
