# Passes when PROGRAM succeeds and everything that it prints is a part of the file DOCUMENT.
cmake_minimum_required(VERSION 3.25)

execute_process(
  COMMAND "${PROGRAM}"
  OUTPUT_VARIABLE printed
  COMMAND_ERROR_IS_FATAL ANY)
file(READ "${DOCUMENT}" text)
string(LENGTH "${printed}" length)
string(FIND "${text}" "${printed}" position)
if(length EQUAL 0 OR position EQUAL -1)
  message(FATAL_ERROR "${DOCUMENT} lacks what ${PROGRAM} prints; put it there:\n${printed}")
endif()
