# A wheel's files besides Python's are all in the package's folder; torch's libraries are found in the folder beside it.
set(_parts brigade_python)
foreach(target brigade_nccl brigade_cuda brigade_tool)
  if(TARGET ${target})
    list(APPEND _parts ${target})
  endif()
endforeach()
add_custom_target(brigade_wheel DEPENDS ${_parts})
set_target_properties(${_parts} PROPERTIES INSTALL_RPATH "$ORIGIN;$ORIGIN/..;$ORIGIN/../torch/lib;$ORIGIN/../../torch/lib")
install(TARGETS ${_parts}
  LIBRARY DESTINATION brigade COMPONENT python
  RUNTIME DESTINATION brigade/bin COMPONENT python)
install(FILES "${PROJECT_BINARY_DIR}/python/brigade/_version.py" DESTINATION brigade COMPONENT python)
