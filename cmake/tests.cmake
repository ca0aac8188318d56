# Tests mirror the tree: the files tests/<room>/<name>_test.cpp make one program a room, and each is a
# ctest entry of its own, `<room>.<name>` (tests/rules/choice/explain_test.cpp: rules.choice.explain),
# which runs the program with --file (tests/support_pure/tests_of_file.h). Labels: checks, pure, torch,
# examples, docs, install; `sanitized` marks what the asan and tsan presets build and run. Targets:
# `pure_tests`, `sanitized_tests`, `test_<room>` (test_dtensor_ops).
#
#   tests/<room above the torch line>/   all of them are one program, test_pure; links tessera_pure
#                                        (+ tests/support_pure/*.cpp)
#   tests/<any other folder>/            a program test_<room>, which has the tests of rooms inside a
#                                        room of TESSERA_TEST_PROGRAMS too; links tessera_all, since tests use what
#                                        libtessera.so does not export (+ support_pure,
#                                        + tests/support/*.cpp, with a main that can also be a rank of
#                                        a test: processes.h there)
#   tests/dtensor/                       a file that calls test::run_ranks or check_call is also a test
#                                        `dtensor_processes.<name>`: the same program, with processes
#                                        as ranks (tests/support/ranks.h)
#   *cuda*, *nccl*, *offload*            have the label `gpu` too: they need one, or skip what does
#   tests/cli/                           also knows the command line, as TESSERA_CLI
#   tests/checks/*_test.py               runs with python3
#   tests/install/                       a project of its own, see run.cmake there

# The limit ends what hangs: slow and shared machines take several times as long as a quiet one, where the
# longest test takes a minute. Sanitizers take 5 to 15 times as long. Tests of processes multiply their
# deadlines by the slowdown.
set(timeout 900)
set(slowdown 1)
if(TESSERA_SANITIZE)
  set(timeout 3600)
  set(slowdown 10)
endif()
set(TESSERA_TEST_TIMEOUT ${timeout} CACHE STRING "Seconds a test may take")
# Rooms below the torch line whose tests all run under the sanitizers; those above it all do.
set(TESSERA_SANITIZED_ROOMS collective liveness transport threads observe comm exec
  dtensor dtensor/random dtensor/dispatch dtensor/kernels dtensor/ops module parallel fsdp interp
  checkpoint)
# Measure resident memory, which the sanitizers keep for their own ends.
set(TESSERA_NOT_SANITIZED dtensor.steady_memory checkpoint.copy_memory checkpoint.memory)

# Rooms whose test program also has the tests of the rooms inside them.
set(TESSERA_TEST_PROGRAMS collective dtensor/dispatch dtensor/ops parallel fsdp checkpoint)

set(TESSERA_PROCESS_TEST_FOLDERS dtensor dtensor/random dtensor/dispatch dtensor/kernels dtensor/ops
  checkpoint parallel)
# Uses check_call, but starts thread ranks of its own too.
set(TESSERA_THREAD_TESTS dtensor.ops.look_ups)
set(TESSERA_TEST_PROCESSES 4 CACHE STRING "Processes of a test of processes")

set(TESSERA_TEST_FILES "" CACHE STRING "Builds the C++ tests whose names match alone (a regex)")

find_package(GTest QUIET)
if(NOT TARGET GTest::gtest)
  message(STATUS "without the C++ tests: libgtest-dev is missing")
  return()
endif()
find_package(Python3 REQUIRED COMPONENTS Interpreter)

get_property(pure_rooms GLOBAL PROPERTY TESSERA_ROOMS_PURE)
get_property(torch_rooms GLOBAL PROPERTY TESSERA_ROOMS_TORCH)
set(tests_dir "${PROJECT_SOURCE_DIR}/tests")
set(sanitizers_dir "${PROJECT_SOURCE_DIR}/tools/sanitizers")
set(test_environment
  OMP_NUM_THREADS=1
  TESSERA_TEST_SLOWDOWN=${slowdown}
  "ASAN_OPTIONS=detect_container_overflow=0:alloc_dealloc_mismatch=0:detect_odr_violation=0"
  "LSAN_OPTIONS=suppressions=${sanitizers_dir}/lsan.supp:print_suppressions=0"
  "UBSAN_OPTIONS=print_stacktrace=1"
  "TSAN_OPTIONS=suppressions=${sanitizers_dir}/tsan.supp:ignore_noninstrumented_modules=1:history_size=7:halt_on_error=0:exitcode=66")
if(TESSERA_SANITIZE)  # CUDA does not start beside their shadow memory
  list(APPEND test_environment CUDA_VISIBLE_DEVICES=)
endif()
add_custom_target(pure_tests)
add_custom_target(sanitized_tests)
add_dependencies(sanitized_tests pure_tests)

# The longest entries, in the order in which they start: first those that wait for deadlines, in turns
# with those that compute, so that the cores are neither idle at the end nor at the beginning.
set(TESSERA_LONG_TESTS
  comm.failure python.sharded_models hosts.hosts python.op_sweep comm.start python.compat_enable
  comm.world_end python.fuzz checkpoint.kill rules_proof.dispatch fsdp.process_failure cli.shard_models
  interp.fuzz collective.algorithms.exchange checkpoint.fuzz python.docs python.examples
  python.program python.partition python.program_state python.compat_full_state
  python.parallel_peer python.models python.checkpoint_dcp python.ranks comm.processes
  interp.sharded_matrix)

# tessera_test(<name> LABELS <label>... COMMAND <command>...)
function(tessera_test name)
  cmake_parse_arguments(PARSE_ARGV 1 TEST "" "" "LABELS;COMMAND")
  add_test(NAME ${name} COMMAND ${TEST_COMMAND} WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}")
  set_tests_properties(${name} PROPERTIES
    TIMEOUT ${TESSERA_TEST_TIMEOUT} LABELS "${TEST_LABELS}" ENVIRONMENT "${test_environment}")
  list(FIND TESSERA_LONG_TESTS ${name} place)
  if(place GREATER_EQUAL 0)
    math(EXPR cost "1000 - ${place}")
    set_tests_properties(${name} PROPERTIES COST ${cost})
  endif()
endfunction()

# Checks of the tree itself, cheapest first.
tessera_test(checks.format LABELS checks
  COMMAND "${PROJECT_SOURCE_DIR}/tools/check_format.sh")
tessera_test(checks.rooms LABELS checks
  COMMAND Python3::Interpreter "${PROJECT_SOURCE_DIR}/tools/check_rooms.py")
tessera_test(checks.api LABELS checks
  COMMAND Python3::Interpreter "${PROJECT_SOURCE_DIR}/tools/check_api.py")
tessera_test(checks.readme LABELS checks
  COMMAND Python3::Interpreter "${PROJECT_SOURCE_DIR}/tools/check_readme.py")
file(GLOB check_tests CONFIGURE_DEPENDS "${tests_dir}/checks/*_test.py")
foreach(file IN LISTS check_tests)
  get_filename_component(name "${file}" NAME_WE)
  string(REGEX REPLACE "_test$" "" name "${name}")
  tessera_test(checks.${name} LABELS checks COMMAND Python3::Interpreter "${file}")
endforeach()

# A library of what the tests of one side of the torch line share, or nothing if there is no source.
# The torch side compiles the pure support anew, against tessera_all: linking tessera_pure as well
# would give it two interning tables.
function(tessera_test_support target folders)
  set(sources)
  foreach(folder IN LISTS folders)
    file(GLOB found CONFIGURE_DEPENDS "${tests_dir}/${folder}/*.cpp")
    list(APPEND sources ${found})
  endforeach()
  if(sources)
    add_library(${target} STATIC ${sources})
    target_link_libraries(${target} PUBLIC ${ARGN})
    tessera_unity(${target})
  else()
    add_library(${target} INTERFACE)
    target_link_libraries(${target} INTERFACE ${ARGN})
  endif()
endfunction()

# A test's own code need not be fast, and half of the build is tests.
set(test_options $<$<CONFIG:RelWithDebInfo,Release>:$<IF:$<BOOL:${TESSERA_PURE}>,-O0,-O1>>)

# A precompiled header for tests, and a program of tests that uses it.
function(tessera_test_pch target)
  tessera_pch(${target} ${ARGN} GTest::gtest)
  target_compile_options(${target} PRIVATE ${test_options})
  set_target_properties(${target} PROPERTIES EXCLUDE_FROM_ALL ON)
endfunction()
function(tessera_test_program target support pch)
  add_executable(${target})
  set_target_properties(${target} PROPERTIES
    RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/tests")
  target_link_libraries(${target} PRIVATE ${support})
  target_precompile_headers(${target} REUSE_FROM ${pch})
  target_compile_options(${target} PRIVATE ${test_options})
  tessera_unity(${target})
endfunction()

tessera_test_pch(tessera_pure_test_pch cmake/pure_test_pch.h)
tessera_test_support(tessera_test_support_pure support_pure tessera_pure GTest::gtest)
tessera_test_program(test_pure tessera_test_support_pure tessera_pure_test_pch)
target_sources(test_pure PRIVATE "${tests_dir}/pure/main.cpp")
add_dependencies(pure_tests test_pure)
if(NOT TESSERA_PURE)
  tessera_test_pch(tessera_test_pch cmake/test_pch.h tessera_torch)
  tessera_test_support(tessera_test_support "support;support_pure"
    tessera_all GTest::gtest)
endif()

# The program of a room below the torch line, made at its first file.
function(tessera_room_tests target folder)
  if(TARGET ${target})
    return()
  endif()
  tessera_test_program(${target} tessera_test_support tessera_test_pch)
  if(folder STREQUAL "cli")
    add_dependencies(${target} tessera_cli)
    target_compile_definitions(${target} PRIVATE TESSERA_CLI="$<TARGET_FILE:tessera_cli>")
  endif()
  if(folder IN_LIST TESSERA_SANITIZED_ROOMS)
    add_dependencies(sanitized_tests ${target})
  endif()
endfunction()

file(GLOB_RECURSE test_files CONFIGURE_DEPENDS "${tests_dir}/*_test.cpp")
foreach(file IN LISTS test_files)
  file(RELATIVE_PATH path "${tests_dir}" "${file}")
  string(REGEX REPLACE "^(.*)/(.*)_test\\.cpp$" "\\1" folder "${path}")
  string(REGEX REPLACE "^(.*)/(.*)_test\\.cpp$" "\\2" name "${path}")
  string(REPLACE "/" "." room "${folder}")
  if(TESSERA_TEST_FILES AND NOT name MATCHES "${TESSERA_TEST_FILES}")
    continue()
  endif()
  if(folder STREQUAL "cli" AND NOT TARGET tessera_cli)
    continue()
  endif()
  if(folder IN_LIST pure_rooms)
    target_sources(test_pure PRIVATE "${file}")
    tessera_test(${room}.${name} LABELS pure sanitized COMMAND test_pure "--file=tests/${path}")
    continue()
  elseif(TESSERA_PURE)
    continue()
  elseif(NOT folder IN_LIST torch_rooms AND EXISTS "${PROJECT_SOURCE_DIR}/tessera/${folder}/")
    message(FATAL_ERROR "tests/${path}: CMakeLists.txt makes no room ${folder}")
  endif()

  set(program "${folder}")
  foreach(outer IN LISTS TESSERA_TEST_PROGRAMS)
    if(folder MATCHES "^${outer}/")
      set(program "${outer}")
    endif()
  endforeach()
  string(REPLACE "/" "_" target "test_${program}")
  tessera_room_tests(${target} "${program}")
  target_sources(${target} PRIVATE "${file}")
  set(labels torch)
  if(name MATCHES "cuda|nccl|offload")
    list(APPEND labels gpu)  # skipped, in whole or in part, where there is none
  endif()
  if(program IN_LIST TESSERA_SANITIZED_ROOMS AND
      NOT "${room}.${name}" IN_LIST TESSERA_NOT_SANITIZED)
    list(APPEND labels sanitized)
  endif()
  tessera_test(${room}.${name} LABELS ${labels} COMMAND ${target} "--file=tests/${path}")
  if(gpu IN_LIST labels)  # all of its tests were skipped, none failed: ctest says so
    set_tests_properties(${room}.${name} PROPERTIES SKIP_REGULAR_EXPRESSION
      "PASSED  \\] 0 tests\\.\n\\[  SKIPPED \\] [0-9]+ tests?, listed below:\n(\\[  SKIPPED \\] [^\n]*\n)+$")
  endif()

  file(STRINGS "${file}" runs_ranks REGEX "test::run_ranks|check_call" LIMIT_COUNT 1)
  if(runs_ranks AND program IN_LIST TESSERA_PROCESS_TEST_FOLDERS
      AND NOT "${room}.${name}" IN_LIST TESSERA_THREAD_TESTS)
    tessera_test(${room}_processes.${name} LABELS torch processes COMMAND
      ${CMAKE_COMMAND} -E env TESSERA_TEST_PROCESSES=${TESSERA_TEST_PROCESSES}
      $<TARGET_FILE:${target}> "--file=tests/${path}")
  endif()
endforeach()

if(TESSERA_PURE)
  return()  # what follows stands on libtessera.so
endif()

# An example of several files is tested by its test.sh, which gets the command line and the program.
foreach(name IN LISTS TESSERA_EXAMPLES)
  set(script "${PROJECT_SOURCE_DIR}/examples/${name}/test.sh")
  if(EXISTS "${script}" AND NOT TARGET tessera_cli)
    continue()
  elseif(EXISTS "${script}")
    tessera_test(examples.${name} LABELS examples
      COMMAND "${script}" $<TARGET_FILE:tessera_cli> $<TARGET_FILE:example_${name}>)
  else()
    tessera_test(examples.${name} LABELS examples COMMAND example_${name})
  endif()
endforeach()

# The C++ blocks of the pages of the documentation, as tools/doc_blocks.py writes them: one program,
# docs_blocks, and a test docs.<page> for each page. One source, since most of it is headers.
set(doc_blocks "${PROJECT_SOURCE_DIR}/tools/doc_blocks.py")
file(GLOB_RECURSE doc_pages CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/docs/*.md")
execute_process(COMMAND "${Python3_EXECUTABLE}" -B "${doc_blocks}" --cpp-pages
  OUTPUT_VARIABLE doc_pages COMMAND_ERROR_IS_FATAL ANY)
add_executable(docs_blocks "${tests_dir}/docs/main.cpp")
foreach(page IN LISTS doc_pages)
  string(REGEX REPLACE "^docs/|\\.md$" "" name "${page}")
  string(REPLACE "/" "." name "${name}")
  set(source "${PROJECT_BINARY_DIR}/docs_blocks/${name}.cpp")
  add_custom_command(OUTPUT "${source}"
    COMMAND Python3::Interpreter -B "${doc_blocks}" --cpp "${page}" "${source}"
    DEPENDS "${PROJECT_SOURCE_DIR}/${page}" "${doc_blocks}"
    VERBATIM)
  target_sources(docs_blocks PRIVATE "${source}")
  tessera_test(docs.${name} LABELS docs COMMAND docs_blocks "${page}")
endforeach()
file(MAKE_DIRECTORY "${PROJECT_BINARY_DIR}/docs_blocks")
target_link_libraries(docs_blocks PRIVATE tessera tessera_options)
target_include_directories(docs_blocks PRIVATE "${PROJECT_SOURCE_DIR}")
target_compile_options(docs_blocks PRIVATE ${test_options} -w)  # a page shows unused values
set_target_properties(docs_blocks PROPERTIES UNITY_BUILD ${TESSERA_UNITY} UNITY_BUILD_BATCH_SIZE 0
  RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/tests")

if(NOT TESSERA_SANITIZE)
  tessera_test(install.exports LABELS install
    COMMAND Python3::Interpreter "${PROJECT_SOURCE_DIR}/tools/check_api.py"
      "${PROJECT_SOURCE_DIR}" --library $<TARGET_FILE:tessera>)
  tessera_test(install.consumer LABELS install
    COMMAND ${CMAKE_COMMAND} "-DBUILD_DIR=${PROJECT_BINARY_DIR}"
      "-DCONSUMER_DIR=${tests_dir}/install/consumer" "-DGENERATOR=${CMAKE_GENERATOR}"
      "-DCXX=${CMAKE_CXX_COMPILER}" -P "${tests_dir}/install/run.cmake")
endif()
