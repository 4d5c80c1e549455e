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

if(BRIGADE_TESTS OR BRIGADE_BENCH)
  find_program(_brigade_active_python NAMES python3 NO_CACHE)
  _brigade_try_python("${PROJECT_SOURCE_DIR}/.venv/bin/python3" "the project's .venv")
  _brigade_try_python("${_brigade_active_python}" "the active Python")
endif()
