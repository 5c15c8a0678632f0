# Passes when PROGRAM, started by LAUNCHER, succeeds and prints what SOURCE promises. CTest's own regular expression would
# not look at the exit status.
cmake_minimum_required(VERSION 3.25)
include("${CMAKE_CURRENT_LIST_DIR}/../cmake/expectation.cmake")

zero_read_expectation("${SOURCE}" prints regex)
execute_process(
  COMMAND ${LAUNCHER} "${PROGRAM}"
  RESULT_VARIABLE result
  OUTPUT_VARIABLE text
  ERROR_VARIABLE errors)
message("${text}${errors}")
if(errors MATCHES "cudaError(NoDevice|InsufficientDriver)")
  message("skipped: there is no GPU to run on")
  return()
endif()
if(NOT result EQUAL 0)
  message(FATAL_ERROR "${PROGRAM} ended with ${result}")
endif()
if(NOT text MATCHES "${regex}")
  message(FATAL_ERROR "the output does not match '${regex}'")
endif()
