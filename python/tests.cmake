# tests/python/*_test.py, each one a test `python.<name>` run by pytest; the docstrings of the package
# are `python.doctests`.

execute_process(COMMAND "${TESSERA_PYTHON}" -c "import pytest, expecttest"
  RESULT_VARIABLE _missing OUTPUT_QUIET ERROR_QUIET)
if(_missing)
  message(STATUS "python: no tests, ${TESSERA_PYTHON} has no pytest and expecttest")
  return()
endif()

set(python_tests_dir "${PROJECT_SOURCE_DIR}/tests/python")
function(tessera_python_test name)
  tessera_test(python.${name} LABELS python COMMAND "${TESSERA_PYTHON}" -m pytest -q
    -p no:cacheprovider --rootdir "${python_tests_dir}" ${ARGN})
  set_tests_properties(python.${name} PROPERTIES SKIP_RETURN_CODE 5)  # every test of it was skipped
  set_property(TEST python.${name} APPEND PROPERTY
    ENVIRONMENT "PYTHONPATH=${PROJECT_BINARY_DIR}/python" "PYTHONDONTWRITEBYTECODE=1")
endfunction()

file(GLOB python_tests CONFIGURE_DEPENDS "${python_tests_dir}/*_test.py")
foreach(file IN LISTS python_tests)
  get_filename_component(name "${file}" NAME_WE)
  string(REGEX REPLACE "_test$" "" name "${name}")
  tessera_python_test(${name} "${file}")
endforeach()
