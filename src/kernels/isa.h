// The instruction set of this process's kernels. Kernels are loops over raw memory, without
// torch, allocation, exceptions or global state.
#pragma once

namespace brigade::kernels {

// In ascending order. avx2 means AVX2 with F16C; avx512 means AVX-512 F, BW, DQ and VL.
enum class Isa { portable, avx2, avx512 };

const char* isa_name(Isa isa) noexcept;
// Whether this CPU can run it.
bool isa_runs(Isa isa) noexcept;
// The best set that this CPU can run, chosen once a process.
// BRIGADE_ISA=portable|avx2|avx512 in the environment sets an upper limit; other values are
// ignored. All sets give the same bits.
Isa isa_best() noexcept;

}  // namespace brigade::kernels
