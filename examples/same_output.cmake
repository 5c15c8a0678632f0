# Two programs print the same, and something. Needs FIRST, SECOND and LAUNCHER, which may be empty.
cmake_minimum_required(VERSION 3.25)

foreach(program IN ITEMS FIRST SECOND)
  execute_process(COMMAND ${LAUNCHER} "${${program}}" OUTPUT_VARIABLE ${program}_output
                  ERROR_VARIABLE errors RESULT_VARIABLE result)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "${${program}} failed: ${result}\n${${program}_output}${errors}")
  endif()
endforeach()
if(FIRST_output STREQUAL "" OR NOT FIRST_output STREQUAL SECOND_output)
  message(FATAL_ERROR "${FIRST} printed\n${FIRST_output}and ${SECOND}\n${SECOND_output}")
endif()
