# BRIGADE_PYTHON: the Python with torch 2.11, numpy, pytest and safetensors that tests and benchmarks compare with; false where
# there is none. In this order: what the user gave, the project's .venv, the active Python. BRIGADE_PYTHON_WHY says which.
function(_brigade_try_python python why)
  if(BRIGADE_PYTHON OR NOT EXISTS "${python}")
    return()
  endif()
  execute_process(
    COMMAND "${python}" -c "import torch, numpy, pytest, safetensors; assert torch.__version__.startswith('2.11')"
    WORKING_DIRECTORY / RESULT_VARIABLE status OUTPUT_QUIET ERROR_QUIET)
  if(status EQUAL 0)
    set(BRIGADE_PYTHON "${python}" CACHE FILEPATH "Python with torch, for tests and benchmarks")
    set(BRIGADE_PYTHON_WHY "${why}" CACHE INTERNAL "")
  endif()
endfunction()

if(BRIGADE_TESTS OR BRIGADE_BENCH OR BRIGADE_PACKAGE)
  find_program(_brigade_active_python NAMES python3 NO_CACHE)
  _brigade_try_python("${PROJECT_SOURCE_DIR}/.venv/bin/python3" "the project's .venv")
  _brigade_try_python("${_brigade_active_python}" "the active Python")
endif()

# BRIGADE_PACKAGE_ON, BRIGADE_PACKAGE_WHY: whether the Python package is built. It must be built with the LibTorch that its Python imports.
function(_brigade_find_package_python)
  set(BRIGADE_PACKAGE_ON OFF PARENT_SCOPE)
  if(NOT BRIGADE_PACKAGE)
    set(BRIGADE_PACKAGE_WHY "BRIGADE_PACKAGE is OFF" PARENT_SCOPE)
  elseif(BRIGADE_SANITIZE)
    set(BRIGADE_PACKAGE_WHY "an interpreter without sanitizers can't load it" PARENT_SCOPE)
  elseif(NOT BRIGADE_PYTHON)
    set(BRIGADE_PACKAGE_WHY "no Python with torch 2.11" PARENT_SCOPE)
  else()
    execute_process(
      COMMAND "${BRIGADE_PYTHON}" -c "import importlib.util, os, sysconfig
print(os.path.realpath(importlib.util.find_spec('torch').submodule_search_locations[0]))
print(os.path.exists(os.path.join(sysconfig.get_path('include'), 'Python.h')))"
      WORKING_DIRECTORY / OUTPUT_VARIABLE found OUTPUT_STRIP_TRAILING_WHITESPACE)
    string(REGEX REPLACE "\n.*" "" torch "${found}")
    file(REAL_PATH "${LibTorch_ROOT}" linked)
    if(NOT torch STREQUAL linked)
      set(BRIGADE_PACKAGE_WHY "its torch is another LibTorch: ${torch}" PARENT_SCOPE)
    elseif(found MATCHES "False$")
      set(BRIGADE_PACKAGE_WHY "Python.h is missing (apt-get install python3-dev)" PARENT_SCOPE)
    else()
      set(BRIGADE_PACKAGE_ON ON PARENT_SCOPE)
      set(BRIGADE_PACKAGE_WHY "for ${BRIGADE_PYTHON}" PARENT_SCOPE)
    endif()
  endif()
endfunction()
_brigade_find_package_python()
if(BRIGADE_PACKAGE_ON)
  add_subdirectory(python)
endif()
