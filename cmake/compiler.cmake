# Warnings, sanitizers and ccache, for our own targets only.
if(PROJECT_IS_TOP_LEVEL)
  set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/bin")
  set(CMAKE_LIBRARY_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/lib")
  # Programs and the Python module find libbrigade_nccl.so here.
  set(CMAKE_BUILD_RPATH "${CMAKE_LIBRARY_OUTPUT_DIRECTORY}")
  set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
endif()

find_program(BRIGADE_CCACHE ccache)
if(BRIGADE_CCACHE AND PROJECT_IS_TOP_LEVEL AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # Precompiled headers need these sloppinesses, or the cache never hits.
  set(CMAKE_CXX_COMPILER_LAUNCHER
    "${CMAKE_COMMAND}" -E env "CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime" "${BRIGADE_CCACHE}")
endif()

option(BRIGADE_UNITY "compile the sources of a folder together" ON)
function(brigade_compile_options target)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wno-missing-field-initializers)
  # g++ would search all of a precompiled header, hundreds of megabytes, each time it collects garbage. It need not: a batch fits in 2 GB.
  target_compile_options(${target} PRIVATE $<$<CXX_COMPILER_ID:GNU>:--param=ggc-min-heapsize=4000000>)
  if(BRIGADE_UNITY)
    # g++ takes a batch for a header, and warns wrongly.
    target_compile_options(${target} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>)
  endif()
  if(BRIGADE_CCACHE)
    target_compile_options(${target} PRIVATE -fpch-preprocess)
  endif()
  # g++ gives false warnings for instrumented code, even in std::regex and std::string.
  if(BRIGADE_WERROR AND NOT BRIGADE_SANITIZE)
    target_compile_options(${target} PRIVATE -Werror)
  endif()
  if(BRIGADE_FUZZ)
    target_compile_options(${target} PRIVATE -fsanitize-coverage=trace-pc,trace-cmp)
  endif()
  if(BRIGADE_SANITIZE)
    target_compile_options(${target} PRIVATE -fsanitize=${BRIGADE_SANITIZE} -fno-omit-frame-pointer -g1)
    if(BRIGADE_SANITIZE MATCHES "undefined")
      target_compile_options(${target} PRIVATE -fno-sanitize-recover=undefined)
    endif()
    target_link_options(${target} PRIVATE -fsanitize=${BRIGADE_SANITIZE})
  endif()
endfunction()

# -O2, because LibTorch's headers take long enough; the loops that matter ask for -O3 themselves.
if(PROJECT_IS_TOP_LEVEL)
  set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG")
endif()

# brigade_unity(TARGET [MOST] [TOGETHER]): compiles the sources of a folder (src/hooks with its subfolders) together, up to MOST (default 30) at
# a time: LibTorch's headers take two seconds to load even precompiled, and sources instantiate the same templates. Names in anonymous
# namespaces must differ within such a folder. TOGETHER: within the whole target.
function(brigade_unity target)
  if(NOT BRIGADE_UNITY)
    return()
  endif()
  cmake_parse_arguments(PARSE_ARGV 1 unity "TOGETHER" "" "")
  set(most 30)
  if(unity_UNPARSED_ARGUMENTS)
    set(most ${unity_UNPARSED_ARGUMENTS})
  endif()
  get_target_property(sources ${target} SOURCES)
  foreach(source ${sources})
    # The name has the folder's path in the project, so another build of the same sources has batches of the same names.
    cmake_path(ABSOLUTE_PATH source OUTPUT_VARIABLE path)
    cmake_path(RELATIVE_PATH path BASE_DIRECTORY "${PROJECT_SOURCE_DIR}")
    string(REGEX MATCH "^[^/]+/[^/]+" room "${path}")
    if(unity_TOGETHER)
      set(room "${target}")
    endif()
    string(MAKE_C_IDENTIFIER "${room}" place)
    if(NOT DEFINED count_${place})
      set(count_${place} 0)
    endif()
    math(EXPR batch "${count_${place}} / ${most} + 1")
    math(EXPR count_${place} "${count_${place}} + 1")
    set_source_files_properties("${source}" PROPERTIES UNITY_GROUP "${place}_${batch}")
  endforeach()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
endfunction()

# brigade_share_headers(TARGET OWNER): compiles TARGET with OWNER's precompiled header: brigade_objects' has ATen and c10d, brigade_torch_headers'
# has all of torch/torch.h, at -O0. g++ takes one only under the options with which it was made.
function(brigade_share_headers target owner)
  target_compile_options(${target} PRIVATE -fPIC)
  get_target_property(visibility ${owner} CXX_VISIBILITY_PRESET)
  if(visibility)
    set_target_properties(${target} PROPERTIES CXX_VISIBILITY_PRESET ${visibility} VISIBILITY_INLINES_HIDDEN ON)
  endif()
  target_precompile_headers(${target} REUSE_FROM ${owner})
endfunction()

# brigade_quick_to_compile(TARGET [LEVEL]): for tests, examples and the command, whose slow parts are in the libraries. -O0 takes a quarter less than -O1 where
# torch/torch.h is included.
function(brigade_quick_to_compile target)
  set(level -O1)
  if(ARGN)
    set(level ${ARGN})
  endif()
  # At -O1 g++ takes optionals of LibTorch for uninitialized.
  target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:${level}> $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
  # From g++ 13 on -O2 sets this, and a precompiled header is taken only with the setting that it was made with.
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 13 AND level STREQUAL "-O1"
      AND CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    target_compile_options(${target} PRIVATE -munroll-only-small-loops)
  endif()
endfunction()
