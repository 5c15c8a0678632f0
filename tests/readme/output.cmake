# Passes when PROGRAM succeeds and the text of the file EXPECTED is a part of what it prints.
cmake_minimum_required(VERSION 3.25)

execute_process(
  COMMAND "${PROGRAM}"
  OUTPUT_VARIABLE text
  COMMAND_ERROR_IS_FATAL ANY)
file(READ "${EXPECTED}" expected)
string(FIND "${text}" "${expected}" position)
if(position EQUAL -1)
  message(FATAL_ERROR "expected\n${expected}\nbut ${PROGRAM} prints\n${text}")
endif()
