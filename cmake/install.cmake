# cmake --install: installs headers, libraries, the program, a CMake package and a pkg-config file.
if(SKBUILD)
  include(cmake/wheel.cmake)
  return()
endif()
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(_brigade_package "${CMAKE_INSTALL_LIBDIR}/cmake/brigade")

# Programs find their libraries without LD_LIBRARY_PATH: ours beside them, LibTorch where it was at build time.
file(RELATIVE_PATH _brigade_bin_to_lib "/${CMAKE_INSTALL_BINDIR}" "/${CMAKE_INSTALL_LIBDIR}")
set(_brigade_installed brigade)
foreach(target brigade_nccl brigade_cuda brigade_tool)
  if(TARGET ${target})
    list(APPEND _brigade_installed ${target})
  endif()
endforeach()
set_target_properties(${_brigade_installed} PROPERTIES
  INSTALL_RPATH "$ORIGIN;$ORIGIN/${_brigade_bin_to_lib};${LibTorch_ROOT}/lib")

install(TARGETS brigade EXPORT brigadeTargets)
foreach(module brigade_nccl brigade_cuda)
  if(TARGET ${module})
    install(TARGETS ${module} LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}")
  endif()
endforeach()
if(TARGET brigade_tool)
  install(TARGETS brigade_tool)
endif()
install(DIRECTORY include/brigade DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}" FILES_MATCHING PATTERN "*.h")
install(EXPORT brigadeTargets NAMESPACE brigade:: DESTINATION "${_brigade_package}")

configure_package_config_file(cmake/brigadeConfig.cmake.in "${PROJECT_BINARY_DIR}/cmake/brigadeConfig.cmake"
  INSTALL_DESTINATION "${_brigade_package}")
write_basic_package_version_file("${PROJECT_BINARY_DIR}/cmake/brigadeConfigVersion.cmake"
  COMPATIBILITY SameMinorVersion)
# The package is relocatable: the prefix follows from the file's own path.
file(RELATIVE_PATH _brigade_pc_to_prefix "/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/")
configure_file(cmake/brigade.pc.in "${PROJECT_BINARY_DIR}/cmake/brigade.pc" @ONLY)
install(FILES
  "${PROJECT_BINARY_DIR}/cmake/brigadeConfig.cmake"
  "${PROJECT_BINARY_DIR}/cmake/brigadeConfigVersion.cmake"
  cmake/FindLibTorch.cmake
  DESTINATION "${_brigade_package}")
install(FILES "${PROJECT_BINARY_DIR}/cmake/brigade.pc" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig")
