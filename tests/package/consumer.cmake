# What the package tests share: configuring the consumer, and building and running it.
cmake_minimum_required(VERSION 3.25)

# Leaves the exit status in ${out_result} and everything printed in ${out_text}.
function(configure_project source build out_result out_text)
  execute_process(
    COMMAND "${CMAKE_COMMAND}" -S "${source}" -B "${build}" -G "${GENERATOR}"
            "-DCMAKE_MAKE_PROGRAM=${MAKE_PROGRAM}" "-DCMAKE_CXX_COMPILER=${COMPILER}" ${ARGN}
    RESULT_VARIABLE result
    OUTPUT_VARIABLE text
    ERROR_VARIABLE text)
  # CMake wraps its messages.
  string(REGEX REPLACE "[ \n]+" " " text "${text}")
  set(${out_result}
      "${result}"
      PARENT_SCOPE)
  set(${out_text}
      "${text}"
      PARENT_SCOPE)
endfunction()

# The same of the consumer.
macro(configure_consumer)
  configure_project("${CMAKE_CURRENT_LIST_DIR}/consumer" ${ARGN})
endmacro()

function(build_and_run_consumer build)
  execute_process(COMMAND "${CMAKE_COMMAND}" --build "${build}" COMMAND_ERROR_IS_FATAL ANY)
  run_consumer("${build}/consumer")
endfunction()

function(run_consumer program)
  execute_process(
    COMMAND "${program}"
    OUTPUT_VARIABLE text
    COMMAND_ERROR_IS_FATAL ANY)
  if(NOT text STREQUAL "zero ${ZERO_VERSION}\n")
    message(FATAL_ERROR "the consumer printed '${text}' instead of 'zero ${ZERO_VERSION}'")
  endif()
endfunction()
