# Compiler settings of everything that is built here: `tessera_options`, sanitizers, ccache, the
# precompiled headers.

option(TESSERA_WERROR "Warnings are errors" OFF)
set(TESSERA_SANITIZE "" CACHE STRING "Sanitizers, as in -fsanitize=: 'address,undefined', 'thread'")

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

# One flag for libraries and programs alike (CMake would give -fPIC to one and -fPIE to the other):
# a precompiled header is only valid where the flags are equal.
add_compile_options(-fPIC)

find_package(Threads REQUIRED)
add_library(tessera_options INTERFACE)
target_include_directories(tessera_options INTERFACE "${PROJECT_SOURCE_DIR}")
target_link_libraries(tessera_options INTERFACE Threads::Threads)
target_compile_options(tessera_options INTERFACE
  -Wall -Wextra -Wnon-virtual-dtor -Woverloaded-virtual -Werror=return-type
  # What TESSERA_API marks (tessera/base/api.h) is exported, and nothing else.
  -fvisibility=hidden -fvisibility-inlines-hidden)
if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  # std::stable_sort of libstdc++ 12 calls a function that libstdc++ has deprecated.
  target_compile_options(tessera_options INTERFACE -Wno-deprecated-declarations)
endif()
if(TESSERA_WERROR)
  target_compile_options(tessera_options INTERFACE -Werror)
endif()

if(TESSERA_SANITIZE)
  # vptr is off: it reads the type information of objects that uninstrumented libtorch made.
  set(sanitize -fsanitize=${TESSERA_SANITIZE} -fno-omit-frame-pointer)
  if(TESSERA_SANITIZE MATCHES "undefined")
    list(APPEND sanitize -fno-sanitize=vptr -fno-sanitize-recover=undefined)
  endif()
  add_compile_options(${sanitize})
  add_link_options(${sanitize})
endif()

find_program(TESSERA_CCACHE ccache)
mark_as_advanced(TESSERA_CCACHE)
if(TESSERA_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # What ccache must overlook to cache files that use a precompiled header (its manual says why).
  set(sloppiness pch_defines,time_macros,include_file_mtime,include_file_ctime)
  set(CMAKE_CXX_COMPILER_LAUNCHER env CCACHE_SLOPPINESS=${sloppiness} ${TESSERA_CCACHE})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    add_compile_options(-fpch-preprocess)
  endif()
endif()

# tessera_pch(<target> <header> <library>...): a target that owns a precompiled header for sources
# that link the libraries.
function(tessera_pch target header)
  add_library(${target} OBJECT "${PROJECT_SOURCE_DIR}/cmake/pch.cpp")
  target_link_libraries(${target} PUBLIC tessera_options ${ARGN})
  target_precompile_headers(${target} PRIVATE "${PROJECT_SOURCE_DIR}/${header}")
endfunction()
