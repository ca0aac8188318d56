# Header-only packages: the system's, else from the folder TESSERA_HEADERS, which has them as an include
# folder does (CLI/CLI.hpp, nlohmann/json.hpp), else there is no target and what needs it is left out.

set(TESSERA_HEADERS "$ENV{TESSERA_HEADERS}" CACHE PATH "Folder of headers that the system lacks")

function(tessera_header_package package target header)
  find_package(${package} QUIET)
  if(TARGET ${target})
    return()
  endif()
  find_path(TESSERA_${package}_DIR "${header}" HINTS "${TESSERA_HEADERS}")
  if(TESSERA_${package}_DIR)
    add_library(${target} INTERFACE IMPORTED GLOBAL)
    target_include_directories(${target} SYSTEM INTERFACE "${TESSERA_${package}_DIR}")
  endif()
endfunction()
