# A room is a folder tessera/<name>/ and one object library, `tessera_<name>`. A room inside a room is
# named by its path: rules/tables is the library tessera_rules_tables.
#
#   tessera_room(<name> [TORCH] [DEPENDS <target>...])
#
# TORCH says that it is below the torch line: only then it sees libtorch's headers.
# DEPENDS names libraries beyond torch that it uses (nlohmann_json::nlohmann_json, ...). Which room
# may include which is in tools/rooms.txt, checked by tools/check_rooms.py.
#
# tessera_house() then makes three libraries:
#   tessera_pure  static, all rooms above the torch line; needs no torch
#   tessera       shared, all rooms (lib/libtessera.so); exports what TESSERA_API marks
#   tessera_all   the objects of all rooms, for programs that use what is not exported: the tests,
#                 the benchmarks, the command line. No program links it beside tessera: the kernels
#                 would be registered twice.

set_property(GLOBAL PROPERTY TESSERA_ROOMS_PURE "")
set_property(GLOBAL PROPERTY TESSERA_ROOMS_TORCH "")

# Callers never ask whether a feature is there: x.cpp or no_x.cpp is built, both with one header.
function(tessera_choose_source files_variable folder name has)
  if(has)
    list(REMOVE_ITEM ${files_variable} "${folder}/no_${name}.cpp")
  else()
    list(REMOVE_ITEM ${files_variable} "${folder}/${name}.cpp")
  endif()
  set(${files_variable} "${${files_variable}}" PARENT_SCOPE)
endfunction()

function(tessera_room name)
  cmake_parse_arguments(PARSE_ARGV 1 ROOM "TORCH" "" "DEPENDS")
  set(folder "${PROJECT_SOURCE_DIR}/tessera/${name}")
  file(GLOB sources CONFIGURE_DEPENDS "${folder}/*.cpp")
  tessera_choose_source(sources "${folder}" nccl "${TESSERA_HAS_NCCL}")
  if(ROOM_TORCH AND TESSERA_PURE)
    return()
  endif()

  string(REPLACE "/" "_" target "tessera_${name}")
  add_library(${target} OBJECT ${sources})
  target_link_libraries(${target} PUBLIC tessera_options ${ROOM_DEPENDS})
  if(ROOM_TORCH)
    target_link_libraries(${target} PUBLIC tessera_torch)
    target_precompile_headers(${target} REUSE_FROM tessera_torch_pch)
    set_property(GLOBAL APPEND PROPERTY TESSERA_ROOMS_TORCH ${name})
  else()
    target_precompile_headers(${target} REUSE_FROM tessera_pure_pch)
    set_property(GLOBAL APPEND PROPERTY TESSERA_ROOMS_PURE ${name})
  endif()
  tessera_unity(${target})
  set_property(GLOBAL APPEND PROPERTY TESSERA_ROOM_DEPENDS ${ROOM_DEPENDS})
endfunction()

# Compiles the files of a target in batches: most of the work is headers and templates that the files
# have in common (sixteen files of a room take two thirds of the time of two batches of eight). What
# two files of a room keep to themselves needs two names then. A source with compile options of its
# own stays alone. TESSERA_UNITY=OFF compiles every file alone, for those who edit the same few.
option(TESSERA_UNITY "Compile several files of a room as one" ON)
set(TESSERA_UNITY_BATCH 16 CACHE STRING "Files in a batch")
function(tessera_unity target)
  set_target_properties(${target} PROPERTIES
    UNITY_BUILD ${TESSERA_UNITY} UNITY_BUILD_BATCH_SIZE ${TESSERA_UNITY_BATCH})
endfunction()

# The objects of rooms, for the sources of a library.
function(tessera_room_objects out)
  set(objects "")
  foreach(room IN LISTS ARGN)
    string(REPLACE "/" "_" target "tessera_${room}")
    list(APPEND objects "$<TARGET_OBJECTS:${target}>")
  endforeach()
  set(${out} "${objects}" PARENT_SCOPE)
endfunction()

function(tessera_house)
  get_property(pure GLOBAL PROPERTY TESSERA_ROOMS_PURE)
  get_property(torch GLOBAL PROPERTY TESSERA_ROOMS_TORCH)
  get_property(depends GLOBAL PROPERTY TESSERA_ROOM_DEPENDS)
  if(depends)
    list(REMOVE_DUPLICATES depends)
  endif()

  tessera_room_objects(pure_objects ${pure})
  add_library(tessera_pure STATIC ${pure_objects} "${PROJECT_SOURCE_DIR}/cmake/pch.cpp")
  target_link_libraries(tessera_pure PUBLIC tessera_options ${depends})
  if(TESSERA_PURE)
    return()
  endif()

  tessera_room_objects(all_objects ${pure} ${torch})
  add_library(tessera SHARED ${all_objects} "${PROJECT_SOURCE_DIR}/cmake/pch.cpp")
  target_include_directories(tessera PUBLIC
    "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>" "$<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>")
  target_compile_features(tessera PUBLIC cxx_std_20)
  target_link_libraries(tessera PUBLIC tessera_torch PRIVATE "$<BUILD_INTERFACE:tessera_options>")
  foreach(library IN LISTS depends)
    target_link_libraries(tessera PRIVATE "$<BUILD_INTERFACE:${library}>")
  endforeach()
  add_library(tessera_all INTERFACE)
  target_link_libraries(tessera_all INTERFACE
    ${all_objects} tessera_options tessera_torch ${depends})

  set(exports "${PROJECT_SOURCE_DIR}/cmake/exports.map")
  target_link_options(tessera PRIVATE "LINKER:--version-script=${exports}")
  set_target_properties(tessera PROPERTIES LINK_DEPENDS "${exports}")
  message(STATUS "rooms without torch: ${pure}; with: ${torch}")
endfunction()
