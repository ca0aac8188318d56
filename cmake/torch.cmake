# Finds libtorch by hand: Torch's own CMake package wants a CUDA toolkit for a CUDA build.
#
# In:  TESSERA_TORCH_DIR      the directory of an installed torch (".../site-packages/torch")
# Out: tessera_torch          imported target: headers (SYSTEM), libraries, rpath
#      TESSERA_TORCH_VERSION  "2.13.0"
#      TESSERA_HAS_CUDA       this torch holds libtorch_cuda.so
#      TESSERA_HAS_NCCL       ... and the headers of NCCL and the CUDA runtime are here too
#
# Also installed, so that find_package(tessera) finds torch the same way.

include_guard(GLOBAL)

# Sets <out> to a directory among <dirs> or the system's that holds <header>, or to "" if none does.
function(tessera_find_header out header)
  find_path(_found ${header} PATHS ${ARGN} NO_CACHE)
  if(_found)
    set(${out} "${_found}" PARENT_SCOPE)
  else()
    set(${out} "" PARENT_SCOPE)
  endif()
endfunction()

set(_torch "${TESSERA_TORCH_DIR}")
if(NOT EXISTS "${_torch}/version.py" OR NOT EXISTS "${_torch}/lib/libtorch_cpu.so")
  message(FATAL_ERROR
    "TESSERA_TORCH_DIR is '${_torch}', which holds no version.py and lib/libtorch_cpu.so. "
    "Give the directory of an installed torch, e.g. -DTESSERA_TORCH_DIR=$(python3 -c "
    "'import os, torch; print(os.path.dirname(torch.__file__))'), or run tools/setup.sh.")
endif()

file(STRINGS "${_torch}/version.py" _line REGEX "^__version__")
if(NOT _line MATCHES "['\"]([0-9]+\\.[0-9]+\\.[0-9]+)")
  message(FATAL_ERROR "${_torch}/version.py holds no __version__ like '2.13.0'; found: ${_line}")
endif()
set(TESSERA_TORCH_VERSION "${CMAKE_MATCH_1}")
if(TESSERA_TORCH_VERSION VERSION_LESS 2.11 OR TESSERA_TORCH_VERSION VERSION_GREATER_EQUAL 2.14)
  message(FATAL_ERROR
    "tessera needs torch 2.11 to 2.13; ${_torch} is ${TESSERA_TORCH_VERSION}. "
    "Install torch==2.13.0 or give another TESSERA_TORCH_DIR.")
endif()

set(TESSERA_HAS_CUDA OFF)
set(TESSERA_HAS_NCCL OFF)
set(_libraries torch torch_cpu c10)
set(_includes "${_torch}/include" "${_torch}/include/torch/csrc/api/include")

if(EXISTS "${_torch}/lib/libtorch_cuda.so" AND EXISTS "${_torch}/lib/libc10_cuda.so")
  set(TESSERA_HAS_CUDA ON)
  list(APPEND _libraries torch_cuda c10_cuda)
  # What ProcessGroupNCCL.hpp includes. pip puts these headers beside torch, but not always those of
  # the compiler that cuda_runtime.h includes (crt/); a system toolkit may lack the libraries' ones.
  file(GLOB _nvidia "${_torch}/../nvidia/*/include")
  file(GLOB _toolkits /usr/local/cuda*/include /usr/local/cuda*/targets/*/include)
  set(TESSERA_HAS_NCCL ON)
  set(_cuda_includes)
  foreach(_header nccl.h cuda_runtime.h crt/host_config.h cusparse.h cublas_v2.h cusolverDn.h)
    tessera_find_header(_folder ${_header} ${_nvidia} ${_toolkits})
    if(_folder)
      list(APPEND _cuda_includes "${_folder}")
    else()
      set(TESSERA_HAS_NCCL OFF)
    endif()
  endforeach()
  if(TESSERA_HAS_NCCL)
    list(APPEND _includes ${_cuda_includes})
  endif()
endif()
list(TRANSFORM _libraries REPLACE "(.+)" "${_torch}/lib/lib\\1.so")
list(REMOVE_DUPLICATES _includes)
list(REMOVE_ITEM _includes /usr/include)

# Named first, so that its symbols are found before others of the same names: libtorch.so of 2.11
# exports a std::filesystem of its own that calls what it does not have, and some compilers would
# link a static copy, with its own locales and terminate handler.
execute_process(COMMAND "${CMAKE_CXX_COMPILER}" -print-file-name=libstdc++.so.6
  OUTPUT_VARIABLE _shared_std OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(IS_ABSOLUTE "${_shared_std}" AND EXISTS "${_shared_std}")
  list(PREPEND _libraries "${_shared_std}")
endif()

add_library(tessera_torch INTERFACE IMPORTED GLOBAL)
set_target_properties(tessera_torch PROPERTIES
  INTERFACE_INCLUDE_DIRECTORIES "${_includes}"
  INTERFACE_SYSTEM_INCLUDE_DIRECTORIES "${_includes}"
  INTERFACE_LINK_OPTIONS -Wl,--no-as-needed
  INTERFACE_LINK_LIBRARIES "${_libraries}")

message(STATUS
  "torch ${TESSERA_TORCH_VERSION} in ${_torch} (CUDA ${TESSERA_HAS_CUDA}, NCCL ${TESSERA_HAS_NCCL})")
