# Passes when check.cmake fails on SOURCE with the words of the file's '// reports: <regex>'. The
# exit status is compared as well: CTest looks at one of the two only.
cmake_minimum_required(VERSION 3.25)
include("${CMAKE_CURRENT_LIST_DIR}/../../../cmake/expectation.cmake")

zero_read_expectation("${SOURCE}" reports regex)
execute_process(
  COMMAND "${CMAKE_COMMAND}" "-DCOMPILER=${COMPILER}" "-DINCLUDE=${INCLUDE}" "-DSOURCE=${SOURCE}"
          "-DSCRATCH=${SCRATCH}" "-DCOUNT_LINES=${COUNT_LINES}" "-DNEVER_LINKED=${NEVER_LINKED}" -P "${CMAKE_CURRENT_LIST_DIR}/../check.cmake"
  RESULT_VARIABLE result
  OUTPUT_VARIABLE text
  ERROR_VARIABLE text)
# CMake wraps its messages.
string(REGEX REPLACE "[ \n]+" " " text "${text}")
if(result EQUAL 0)
  message(FATAL_ERROR "${SOURCE}: the check accepts it")
endif()
if(NOT text MATCHES "${regex}")
  message(FATAL_ERROR "${SOURCE}: the check's words do not match '${regex}':\n${text}")
endif()
