// Which instruction set the kernels of this process use. Kernels: loops over raw memory; no
// torch, no allocation, no exception, no global state.
#pragma once

namespace brigade::kernels {

// In rising order. avx2 means AVX2 with F16C; avx512 means AVX-512 F, BW, DQ and VL.
enum class Isa { portable, avx2, avx512 };

const char* isa_name(Isa isa) noexcept;
// Whether this CPU can run it.
bool isa_runs(Isa isa) noexcept;
// The best this CPU can run, chosen once a process. BRIGADE_ISA=portable|avx2|avx512 in the
// environment sets an upper limit; other values are ignored. All sets give the same bits.
Isa isa_best() noexcept;

}  // namespace brigade::kernels
