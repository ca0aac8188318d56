# `cmake --install build --prefix X`: the headers that users include, the library, the command line,
# and what find_package(tessera) needs.

include(CMakePackageConfigHelpers)
set(config_dir "${CMAKE_INSTALL_LIBDIR}/cmake/tessera")
# In a wheel (python/CMakeLists.txt) torch is the package beside this one; lib/ and bin/ lie in it.
set(torch_rpath "${TESSERA_TORCH_DIR}/lib")
if(SKBUILD)
  set(torch_rpath "$ORIGIN/../../torch/lib")
endif()

set_target_properties(tessera PROPERTIES INSTALL_RPATH "${torch_rpath}")
if(NOT SKBUILD)  # a wheel has no links, so each name would be a copy
  set_target_properties(tessera PROPERTIES
    VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR})
endif()
install(TARGETS tessera EXPORT tesseraTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
if(TARGET tessera_cli)
  set_target_properties(tessera_cli PROPERTIES INSTALL_RPATH "${torch_rpath}")
  install(TARGETS tessera_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()

# The headers that users include: tessera/tessera.h and what it includes, directly or not.
set(headers tessera/tessera.h)
set(unread ${headers})
while(unread)
  list(POP_FRONT unread header)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${header}")
  file(STRINGS "${PROJECT_SOURCE_DIR}/${header}" lines REGEX "^#include [<\"]tessera/")
  foreach(line IN LISTS lines)
    string(REGEX REPLACE "^#include [<\"]([^>\"]*).*" "\\1" included "${line}")
    if(NOT included IN_LIST headers)
      list(APPEND headers "${included}")
      list(APPEND unread "${included}")
    endif()
  endforeach()
endwhile()
foreach(header IN LISTS headers)
  get_filename_component(folder "${header}" DIRECTORY)
  install(FILES "${header}" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/${folder}")
endforeach()

install(EXPORT tesseraTargets NAMESPACE tessera:: DESTINATION ${config_dir})
configure_package_config_file(cmake/tesseraConfig.cmake.in tesseraConfig.cmake
  INSTALL_DESTINATION ${config_dir})
write_basic_package_version_file(tesseraConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/tesseraConfig.cmake"
  "${PROJECT_BINARY_DIR}/tesseraConfigVersion.cmake" cmake/torch.cmake
  DESTINATION ${config_dir})
