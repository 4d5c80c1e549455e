# Finds LibTorch 2.11 and makes imported targets for it, without the wheel's own TorchConfig.cmake, which insists on a CUDA toolkit of its own
# choosing.
#
# Where it looks, first hit wins: LIBTORCH (variable or environment: a folder with include/ and lib/), Torch_DIR, the active Python's torch,
# the project's own .venv.
#
# Gives: LibTorch_FOUND, LibTorch_ROOT, LibTorch_VERSION, LibTorch_WHY (which of the four places it was), and the targets
#   LibTorch::cpu   torch_cpu and c10
#   LibTorch::cuda  torch_cuda and c10_cuda on top; only where the library is there

function(_libtorch_from_python python out)
  set(${out} "" PARENT_SCOPE)
  if(NOT EXISTS "${python}")
    return()
  endif()
  execute_process(
    COMMAND "${python}" -c "import importlib.util as u; s = u.find_spec('torch'); print(s.submodule_search_locations[0] if s else '')"
    OUTPUT_VARIABLE found OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  set(${out} "${found}" PARENT_SCOPE)
endfunction()

function(_libtorch_candidates)
  if(LIBTORCH)
    set(LibTorch_ROOT "${LIBTORCH}" PARENT_SCOPE)
    set(LibTorch_WHY "LIBTORCH" PARENT_SCOPE)
    return()
  endif()
  if(DEFINED ENV{LIBTORCH} AND NOT "$ENV{LIBTORCH}" STREQUAL "")
    set(LibTorch_ROOT "$ENV{LIBTORCH}" PARENT_SCOPE)
    set(LibTorch_WHY "LIBTORCH of the environment" PARENT_SCOPE)
    return()
  endif()
  if(Torch_DIR)
    get_filename_component(root "${Torch_DIR}/../../.." ABSOLUTE)
    set(LibTorch_ROOT "${root}" PARENT_SCOPE)
    set(LibTorch_WHY "Torch_DIR" PARENT_SCOPE)
    return()
  endif()
  find_program(_libtorch_python NAMES python3 NO_CACHE)
  _libtorch_from_python("${_libtorch_python}" root)
  if(root)
    set(LibTorch_ROOT "${root}" PARENT_SCOPE)
    set(LibTorch_WHY "the active Python" PARENT_SCOPE)
    return()
  endif()
  foreach(venv "${PROJECT_SOURCE_DIR}/.venv" "${CMAKE_CURRENT_LIST_DIR}/../.venv" "${LibTorch_HINT_VENV}")
    _libtorch_from_python("${venv}/bin/python3" root)
    if(root)
      set(LibTorch_ROOT "${root}" PARENT_SCOPE)
      set(LibTorch_WHY "the project's .venv" PARENT_SCOPE)
      return()
    endif()
  endforeach()
  if(LibTorch_HINT)
    set(LibTorch_ROOT "${LibTorch_HINT}" PARENT_SCOPE)
    set(LibTorch_WHY "where brigade was built" PARENT_SCOPE)
  endif()
endfunction()

_libtorch_candidates()

set(LibTorch_VERSION "")
foreach(_header "torch/headeronly/version.h" "torch/csrc/api/include/torch/version.h")
  if(NOT LibTorch_VERSION AND EXISTS "${LibTorch_ROOT}/include/${_header}")
    file(STRINGS "${LibTorch_ROOT}/include/${_header}" _lines REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH) [0-9]+")
    string(REGEX REPLACE "[^0-9;]" "" LibTorch_VERSION "${_lines}")
    string(REPLACE ";" "." LibTorch_VERSION "${LibTorch_VERSION}")
  endif()
endforeach()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(LibTorch
  REQUIRED_VARS LibTorch_ROOT LibTorch_VERSION VERSION_VAR LibTorch_VERSION
  REASON_FAILURE_MESSAGE "Give -DLIBTORCH=DIR (a folder with include/ and lib/), or run 'make build', which installs it into .venv.")

if(LibTorch_FOUND AND NOT TARGET LibTorch::cpu)
  set(_include "${LibTorch_ROOT}/include" "${LibTorch_ROOT}/include/torch/csrc/api/include")
  add_library(LibTorch::c10 SHARED IMPORTED)
  set_target_properties(LibTorch::c10 PROPERTIES IMPORTED_LOCATION "${LibTorch_ROOT}/lib/libc10.so")
  add_library(LibTorch::cpu SHARED IMPORTED)
  set_target_properties(LibTorch::cpu PROPERTIES
    IMPORTED_LOCATION "${LibTorch_ROOT}/lib/libtorch_cpu.so"
    INTERFACE_INCLUDE_DIRECTORIES "${_include}"
    INTERFACE_SYSTEM_INCLUDE_DIRECTORIES "${_include}"
    INTERFACE_COMPILE_DEFINITIONS "USE_DISTRIBUTED"
    INTERFACE_LINK_LIBRARIES "LibTorch::c10")
  if(EXISTS "${LibTorch_ROOT}/lib/libtorch_cuda.so")
    add_library(LibTorch::cuda SHARED IMPORTED)
    set_target_properties(LibTorch::cuda PROPERTIES
      IMPORTED_LOCATION "${LibTorch_ROOT}/lib/libtorch_cuda.so"
      INTERFACE_LINK_LIBRARIES "LibTorch::cpu;${LibTorch_ROOT}/lib/libc10_cuda.so")
  endif()
endif()
