# Finds LibTorch 2.11 and makes imported targets for it, without the wheel's own TorchConfig.cmake, which
# insists on its own choice of CUDA toolkit.
#
# Looks in these places, and takes the first match: LIBTORCH (variable or environment: a folder with include/ and lib/),
# Torch_DIR, LibTorch_HINT (set by an installed brigade: where it was built), the torch of the Python that pip builds
# a wheel for, the active Python's torch, the project's own .venv. A place that the user named must be right. A Python is skipped, and LibTorch_PASSED_OVER
# says why, when its torch has another version or its libraries do not load.
#
# Sets: LibTorch_FOUND, LibTorch_ROOT, LibTorch_VERSION, LibTorch_WHY (which of the places it was), and
#   LibTorch::cpu   torch_cpu and c10
#   LibTorch::cuda  torch_cuda and c10_cuda in addition; only where the library exists
cmake_policy(PUSH)
cmake_policy(VERSION 3.25)

# The version of the LibTorch in `root`, or nothing.
function(_libtorch_version root out)
  set(${out} "" PARENT_SCOPE)
  foreach(header "torch/headeronly/version.h" "torch/csrc/api/include/torch/version.h")
    if(EXISTS "${root}/include/${header}")
      file(STRINGS "${root}/include/${header}" lines
        REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH) [0-9]+")
      string(REGEX REPLACE "[^0-9;]" "" version "${lines}")
      string(REPLACE ";" "." version "${version}")
      set(${out} "${version}" PARENT_SCOPE)
      return()
    endif()
  endforeach()
endfunction()

# Takes the torch of `python` if it is good. An empty entry of sys.path means the current folder, which is not wanted.
function(_libtorch_from_python python why)
  if(NOT EXISTS "${python}")
    return()
  endif()
  # -E: pip's build isolation hides the environment's packages through PYTHONPATH.
  execute_process(
    COMMAND "${python}" -E -c "
import importlib.util, sys
sys.path = [p for p in sys.path if p]
spec = importlib.util.find_spec('torch')
print(spec.submodule_search_locations[0] if spec else '')"
    OUTPUT_VARIABLE root OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  if(NOT root)
    return()
  endif()
  _libtorch_version("${root}" version)
  set(wanted "${LibTorch_FIND_VERSION_MAJOR}.${LibTorch_FIND_VERSION_MINOR}")
  if(LibTorch_FIND_VERSION AND NOT version MATCHES "^${wanted}\\.")
    set(LibTorch_PASSED_OVER "${why} has torch ${version}" PARENT_SCOPE)
    return()
  endif()
  execute_process(
    COMMAND "${python}" -c "import ctypes; ctypes.CDLL('${root}/lib/libtorch_cpu.so')"
    RESULT_VARIABLE status ERROR_VARIABLE error OUTPUT_QUIET)
  if(NOT status EQUAL 0)
    string(REGEX MATCH "OSError: [^\n]*" error "${error}")
    set(LibTorch_PASSED_OVER "${why} has torch ${version}, but it does not load: ${error}" PARENT_SCOPE)
    return()
  endif()
  set(LibTorch_ROOT "${root}" PARENT_SCOPE)
  set(LibTorch_WHY "${why}" PARENT_SCOPE)
endfunction()

function(_libtorch_named root why)
  get_filename_component(root "${root}" ABSOLUTE)
  set(LibTorch_ROOT "${root}" PARENT_SCOPE)
  set(LibTorch_WHY "${why}" PARENT_SCOPE)
endfunction()

set(LibTorch_ROOT "")
set(LibTorch_PASSED_OVER "")
find_program(_libtorch_python NAMES python3 NO_CACHE)
if(LIBTORCH)
  _libtorch_named("${LIBTORCH}" "LIBTORCH")
elseif(NOT "$ENV{LIBTORCH}" STREQUAL "")
  _libtorch_named("$ENV{LIBTORCH}" "LIBTORCH of the environment")
elseif(Torch_DIR)
  _libtorch_named("${Torch_DIR}/../../.." "Torch_DIR")
elseif(EXISTS "${LibTorch_HINT}/include")
  _libtorch_named("${LibTorch_HINT}" "where brigade was built")
elseif(SKBUILD)
  _libtorch_from_python("${Python_EXECUTABLE}" "the Python that the wheel is for")
else()
  _libtorch_from_python("${_libtorch_python}" "the active Python")
  if(NOT LibTorch_ROOT)
    _libtorch_from_python("${PROJECT_SOURCE_DIR}/.venv/bin/python3" "the project's .venv")
  endif()
endif()

_libtorch_version("${LibTorch_ROOT}" LibTorch_VERSION)
set(_libtorch_remedy "Give -DLIBTORCH=DIR (a folder with include/ and lib/), or run 'make build', which installs LibTorch into .venv.")
if(LibTorch_WHY)
  string(PREPEND _libtorch_remedy "Looked at ${LibTorch_WHY}: '${LibTorch_ROOT}'. ")
endif()
if(LibTorch_PASSED_OVER)
  string(PREPEND _libtorch_remedy "Passed over: ${LibTorch_PASSED_OVER}. ")
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(LibTorch
  REQUIRED_VARS LibTorch_ROOT LibTorch_VERSION VERSION_VAR LibTorch_VERSION
  HANDLE_VERSION_RANGE REASON_FAILURE_MESSAGE "${_libtorch_remedy}")

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
cmake_policy(POP)
