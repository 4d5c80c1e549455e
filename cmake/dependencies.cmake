# Foreign code with which the library itself is compiled; installed headers need none of it. Makes the target brigade_dependencies.
function(_brigade_lacks what package)
  message(FATAL_ERROR "brigade is compiled with ${what}, which is not here. Debian's package is ${package}: apt-get install ${package}, or run 'make build', which installs it.")
endfunction()

find_package(nlohmann_json 3 QUIET)
if(NOT nlohmann_json_FOUND)
  _brigade_lacks("nlohmann-json" nlohmann-json3-dev)
endif()
find_path(BRIGADE_XXHASH_INCLUDE xxhash.h)
if(NOT BRIGADE_XXHASH_INCLUDE)
  _brigade_lacks("xxHash (xxhash.h)" libxxhash-dev)
endif()

add_library(brigade_dependencies INTERFACE)
target_link_libraries(brigade_dependencies INTERFACE nlohmann_json::nlohmann_json ${CMAKE_DL_LIBS})
target_include_directories(brigade_dependencies SYSTEM INTERFACE "${BRIGADE_XXHASH_INCLUDE}")
