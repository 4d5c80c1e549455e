# The codecs' CUDA kernels: a module that is loaded on demand, on where nvcc is found (cuda.cmake looks for the toolkit). Without it codecs work with
# ATen's operations. No GPU is needed to build it, and it does not contain LibTorch: nvcc compiles one file with a few headers.
# Sets: BRIGADE_KERNELS_ON, BRIGADE_KERNELS_WHY, and the target brigade_cuda where it is on.
option(BRIGADE_CUDA "build the CUDA kernels where nvcc is found" ON)
# Makes machine code for these GPUs, and code that the drivers of newer ones compile.
set(BRIGADE_CUDA_ARCHITECTURES "80;90;100" CACHE STRING "compute capabilities that get machine code")

set(BRIGADE_KERNELS_ON OFF)
if(NOT BRIGADE_CUDA)
  set(BRIGADE_KERNELS_WHY "BRIGADE_CUDA is OFF")
elseif(NOT BRIGADE_CUDA_ON)
  set(BRIGADE_KERNELS_WHY "they need CUDA")
elseif(NOT BRIGADE_NVCC)
  set(BRIGADE_KERNELS_WHY "nvcc not found")
else()
  set(BRIGADE_KERNELS_ON ON)
  set(BRIGADE_KERNELS_WHY "${BRIGADE_NVCC}")
endif()

if(BRIGADE_KERNELS_ON)
  set(_codes "")
  foreach(architecture ${BRIGADE_CUDA_ARCHITECTURES})
    list(APPEND _codes "-gencode=arch=compute_${architecture},code=sm_${architecture}")
  endforeach()
  list(GET BRIGADE_CUDA_ARCHITECTURES -1 _newest)
  list(APPEND _codes "-gencode=arch=compute_${_newest},code=compute_${_newest}")
  set(_source "${CMAKE_CURRENT_SOURCE_DIR}/src/kernels/cuda/cuda_kernels.cu")
  set(_object "${PROJECT_BINARY_DIR}/cuda_kernels.o")
  # A custom command, not CMake's CUDA language, which checks the compiler for longer than the compilation takes. --fmad=false: gives the CPU's bits.
  add_custom_command(OUTPUT "${_object}"
    COMMAND ${CMAKE_CXX_COMPILER_LAUNCHER} "${BRIGADE_NVCC}" -std=c++20 -O3 --fmad=false ${_codes} --cudart shared --threads 2
      -Xcompiler=-fPIC,-Wall,-Wextra,-fvisibility=hidden "-I${CMAKE_CURRENT_SOURCE_DIR}/src" -MD -MF "${_object}.d" -c "${_source}" -o "${_object}"
    DEPENDS "${_source}" DEPFILE "${_object}.d" VERBATIM COMMENT "CUDA kernels")
  add_library(brigade_cuda MODULE "${_object}")
  set_target_properties(brigade_cuda PROPERTIES LINKER_LANGUAGE CXX LIBRARY_OUTPUT_DIRECTORY "$<TARGET_FILE_DIR:brigade>")
  # It uses LibTorch's own runtime, which is in the process before this module is.
  target_link_libraries(brigade_cuda PRIVATE CUDA::cudart)
endif()
