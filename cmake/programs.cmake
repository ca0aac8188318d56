# Programs that stand on the library: the command line, examples, benchmarks. Examples use it as
# installed; the others contain its objects, since they use more than it exports.
#
#   cli/*.cpp                  -> bin/tessera
#   examples/NNN_name.cpp      -> examples/NNN_name   each runs as a test (label `examples`)
#   examples/name/*.cpp        -> examples/name       tested by examples/name/test.sh
#   benchmarks/name_bench.cpp  -> benchmarks/name_bench   built by the target `benchmarks` alone;
#                                 the file has its own main (BENCHMARK_MAIN() or another)

file(GLOB cli_sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/cli/*.cpp")
tessera_header_package(CLI11 CLI11::CLI11 CLI/CLI.hpp)
if(NOT TARGET CLI11::CLI11)
  message(STATUS "without the command line: CLI/CLI.hpp is missing (libcli11-dev, or TESSERA_HEADERS)")
elseif(cli_sources)
  add_executable(tessera_cli ${cli_sources})
  set_target_properties(tessera_cli PROPERTIES OUTPUT_NAME tessera)
  target_link_libraries(tessera_cli PRIVATE tessera_all CLI11::CLI11)
  target_compile_definitions(tessera_cli PRIVATE TESSERA_VERSION="${PROJECT_VERSION}")
  target_precompile_headers(tessera_cli REUSE_FROM tessera_torch_pch)
  tessera_unity(tessera_cli)
endif()

if(SKBUILD)  # a wheel holds the command line alone
  return()
endif()

file(GLOB example_files CONFIGURE_DEPENDS
  "${PROJECT_SOURCE_DIR}/examples/*.cpp" "${PROJECT_SOURCE_DIR}/examples/*/*.cpp")
set(TESSERA_EXAMPLES "")
foreach(file IN LISTS example_files)
  file(RELATIVE_PATH path "${PROJECT_SOURCE_DIR}/examples" "${file}")
  string(REGEX REPLACE "(/.*|\\.cpp)$" "" name "${path}")
  if(NOT TARGET example_${name})
    add_executable(example_${name})
    set_target_properties(example_${name} PROPERTIES
      OUTPUT_NAME ${name} RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/examples")
    target_link_libraries(example_${name} PRIVATE tessera tessera_options)
    target_precompile_headers(example_${name} REUSE_FROM tessera_torch_pch)
    tessera_unity(example_${name})
    list(APPEND TESSERA_EXAMPLES ${name})
  endif()
  target_sources(example_${name} PRIVATE "${file}")
endforeach()

add_custom_target(benchmarks)
file(GLOB bench_files CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/benchmarks/*_bench.cpp")
find_package(benchmark QUIET)
if(NOT TESSERA_HAS_NCCL)  # it needs the headers of CUDA
  list(FILTER bench_files EXCLUDE REGEX "/gpu_bench\\.cpp$")
endif()
foreach(file IN LISTS bench_files)
  get_filename_component(name "${file}" NAME_WE)
  file(STRINGS "${file}" needs_library REGEX "benchmark/benchmark\\.h" LIMIT_COUNT 1)
  if(needs_library AND NOT TARGET benchmark::benchmark)
    message(STATUS "without ${name}: libbenchmark-dev is missing")
    continue()
  endif()
  add_executable(${name} EXCLUDE_FROM_ALL "${file}")
  set_target_properties(${name} PROPERTIES
    RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/benchmarks")
  target_link_libraries(${name} PRIVATE tessera_all)
  if(needs_library)
    target_link_libraries(${name} PRIVATE benchmark::benchmark)
  endif()
  target_precompile_headers(${name} REUSE_FROM tessera_torch_pch)
  add_dependencies(benchmarks ${name})
endforeach()
if(TARGET gpu_bench)  # the runtime of CUDA is one of the libraries that torch's need
  target_link_options(gpu_bench PRIVATE -Wl,--copy-dt-needed-entries)
endif()
