# Passes when a project of PROJECT and MAIN and nothing else configures, builds, and prints PRINTED.
cmake_minimum_required(VERSION 3.25)

file(REMOVE_RECURSE "${SCRATCH}")
configure_file("${PROJECT}" "${SCRATCH}/project/CMakeLists.txt" COPYONLY)
configure_file("${MAIN}" "${SCRATCH}/project/main.cpp" COPYONLY)
execute_process(
  COMMAND
    "${CMAKE_COMMAND}" -S "${SCRATCH}/project" -B "${SCRATCH}/build" -G "${GENERATOR}"
    "-DCMAKE_MAKE_PROGRAM=${MAKE_PROGRAM}" "-DCMAKE_CXX_COMPILER=${COMPILER}"
    "-DFETCHCONTENT_SOURCE_DIR_ZERO=${ZERO_SOURCE}" COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND "${CMAKE_COMMAND}" --build "${SCRATCH}/build" COMMAND_ERROR_IS_FATAL ANY)
file(STRINGS "${PROJECT}" name REGEX "^add_executable")
string(REGEX REPLACE "add_executable.([a-z_]+) .*" "\\1" name "${name}")
execute_process(
  COMMAND "${SCRATCH}/build/${name}"
  OUTPUT_VARIABLE printed
  COMMAND_ERROR_IS_FATAL ANY)
file(READ "${PRINTED}" expected)
if(NOT printed STREQUAL expected)
  message(FATAL_ERROR "the program printed\n${printed}instead of\n${expected}")
endif()
