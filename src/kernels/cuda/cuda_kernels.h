// The CPU kernels for CUDA: they give the same messages, bit for bit, in one pass over
// memory each. nvcc compiles them into a module of their own, libbrigade_cuda.so, which
// codecs load when they first get a CUDA tensor.
//
// All launch on `stream` (a cudaStream_t) of the current device and return at once: 0, or
// the cudaError_t of the launch. They allocate nothing, wait for nothing, and use no
// atomics, so every run gives the same bits. Memory has the alignment of its elements; 16
// bytes for floats and 4 for codes are faster. Zero elements are fine.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/affine_u8.h"
#include "kernels/low_rank.h"

namespace brigade::kernels {

enum class Half : int { fp16, bf16 };

// Messages of several ranks with one layout: they begin `stride` bytes apart, and each
// message's codes are at offset `codes_at`.
struct Messages {
  const std::uint8_t* first;
  std::size_t stride;
  std::size_t codes_at;
  int count;
};

// The owner's step of an exchange: sum = own + decoded messages, in order; p = sum * (1 /
// divisor) + residual / divisor; headers and codes become p's message, and residual = (p -
// decoded) * divisor. `own` may be changed.
struct OwnerStep {
  float* own;
  float* residual;  // may be null
  int divisor;
  void* headers;  // of the new message
  void* codes;
  std::size_t size;
};

// One matrix of PowerSGD. `sum` and last_p may be null, as for feed_back in low_rank.h.
struct LowRankMatrix {
  float* m;
  float* sum;
  const float* last_p;
  const float* last_q;
  float* p;
  float* q;
};

// The end of a step of one matrix, which is *lost* if a value of `check` is not finite. P
// and Q, or zeros if it is lost, are kept for the next step; `next` becomes Q or, if it is
// lost, `last`, or zeros if that is null.
struct LowRankSettling {
  const float* check;
  std::size_t check_size;
  const float* p;
  const float* q;
  // These may be null.
  float* kept_p;
  float* kept_q;
  float* next;
  const float* last;
};

// Columns that become orthonormal. If `from` is not null, they start as those of `from` or,
// where these are zero, of `spare`.
struct LowRankColumns {
  float* columns;
  const float* from;
  const float* spare;
};

// Changes with the table, its functions' arguments, or a message's bytes.
inline constexpr int kCudaKernelsVersion = 6;

struct CudaKernels {
  // Module and library must have the same version.
  int version;
  const char* (*error_text)(int error);
  // Whether the current device can run the kernels: 0, or the error that each of them would
  // give. Not 0 if its architecture is older than all compiled ones.
  int (*usable)();

  // cast.h
  int (*narrow)(Half half, const float* src, float scale, std::uint16_t* dst,
                std::size_t size, void* stream);
  int (*widen)(Half half, const std::uint16_t* src, float* dst, std::size_t size, bool add,
               void* stream);
  int (*reduce_half)(Half half, Messages messages, OwnerStep reduction, void* stream);

  // int8_block.h; `residual` may be null
  int (*int8_encode)(const float* src, float factor, float* residual, float* scales,
                     std::int8_t* codes, std::size_t size, void* stream);
  int (*int8_decode)(const float* scales, const std::int8_t* codes, float* dst,
                     std::size_t size, bool add, void* stream);
  int (*reduce_int8)(Messages messages, OwnerStep reduction, void* stream);

  // int4_block.h; `residual` may be null, codes are aligned to 4 bytes
  int (*int4_encode)(const float* src, float factor, float* residual, float* steps,
                     std::uint8_t* codes, std::size_t size, void* stream);
  int (*int4_decode)(const float* steps, const std::uint8_t* codes, float* dst,
                     std::size_t size, bool add, void* stream);
  int (*reduce_int4)(Messages messages, OwnerStep reduction, void* stream);

  // affine_u8.h in blocks of 512
  int (*affine_encode)(const float* src, float factor, float* residual,
                       AffineHeader* headers, std::uint8_t* codes, std::size_t size,
                       void* stream);
  int (*affine_decode)(const AffineHeader* headers, const std::uint8_t* codes, float* dst,
                       std::size_t size, bool add, void* stream);
  int (*reduce_affine)(Messages messages, OwnerStep reduction, void* stream);

  // affine_u8.h with one block for all values: two passes. `scratch` has
  // kAffineScratchBytes.
  int (*affine_whole_encode)(const float* src, float factor, float* residual,
                             AffineHeader* header, std::uint8_t* codes, std::size_t size,
                             void* scratch, void* stream);
  int (*affine_whole_decode)(const AffineHeader* header, const std::uint8_t* codes,
                             float* dst, std::size_t size, bool add, void* stream);
  int (*reduce_affine_whole)(Messages messages, OwnerStep reduction, void* scratch,
                             void* stream);

  // As in low_rank.h, except that the bits may differ and Q is columns x rank. One launch
  // does many matrices of one shape.
  int (*low_rank_project)(LowRankShape shape, const LowRankMatrix* matrices, int count,
                          void* stream);
  // `partial` has count * parts * columns * rank floats; not needed for one part.
  int (*low_rank_project_back)(LowRankShape shape, const LowRankMatrix* matrices, int count,
                               int parts, float* partial, void* stream);
  // `lost` has a float for each matrix.
  int (*low_rank_settle)(LowRankShape shape, const LowRankSettling* matrices, int count,
                         float* lost, void* stream);
  // M = P Qᵀ. Where `lost`, which may be null, is not zero, low_rank_project's change of
  // `sum` is undone first, up to rounding.
  int (*low_rank_rebuild)(LowRankShape shape, const LowRankMatrix* matrices, int count,
                          const float* lost, void* stream);
  int (*low_rank_orthonormalize)(std::size_t rows, std::size_t rank,
                                 const LowRankColumns* matrices, int count, double epsilon,
                                 void* stream);
};

inline constexpr std::size_t kAffineScratchBytes = std::size_t{8} << 10;

// The module's only export.
extern "C" [[gnu::visibility("default")]] const CudaKernels* brigade_cuda_kernels();

}  // namespace brigade::kernels
