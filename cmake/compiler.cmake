# Warnings, sanitizers and ccache, for our own targets only.
if(PROJECT_IS_TOP_LEVEL)
  set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/bin")
  set(CMAKE_LIBRARY_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/lib")
  set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
endif()

find_program(BRIGADE_CCACHE ccache)
if(BRIGADE_CCACHE AND PROJECT_IS_TOP_LEVEL AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # Precompiled headers need these sloppinesses, or nothing ever hits.
  set(CMAKE_CXX_COMPILER_LAUNCHER
    "${CMAKE_COMMAND}" -E env "CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime" "${BRIGADE_CCACHE}")
endif()

function(brigade_compile_options target)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wno-missing-field-initializers)
  if(BRIGADE_CCACHE)
    target_compile_options(${target} PRIVATE -fpch-preprocess)
  endif()
  # g++ sees ghosts in instrumented code, even in std::regex and std::string.
  if(BRIGADE_WERROR AND NOT BRIGADE_SANITIZE)
    target_compile_options(${target} PRIVATE -Werror)
  endif()
  if(BRIGADE_SANITIZE)
    target_compile_options(${target} PRIVATE -fsanitize=${BRIGADE_SANITIZE} -fno-omit-frame-pointer -g1)
    if(BRIGADE_SANITIZE MATCHES "undefined")
      target_compile_options(${target} PRIVATE -fno-sanitize-recover=undefined)
    endif()
    target_link_options(${target} PRIVATE -fsanitize=${BRIGADE_SANITIZE})
  endif()
endfunction()

# -O2: LibTorch's headers take long enough; the loops that matter ask for -O3 themselves.
if(PROJECT_IS_TOP_LEVEL)
  set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG")
endif()
