# Units that take bodies from one of equal flags link; under other flags, or without one, the linker
# says which flags are missing. Two units that have bodies are one too many. Needs COMPILER, INCLUDE
# and SCRATCH.
cmake_minimum_required(VERSION 3.25)

set(flags_plain -O2)
set(flags_no_rtti -O2 -fno-rtti)
foreach(flags IN ITEMS plain no_rtti)
  foreach(role IN ITEMS DECLARATIONS IMPLEMENTATION)
    execute_process(
      COMMAND "${COMPILER}" -std=c++20 -I "${INCLUDE}" ${flags_${flags}} -DZERO_${role} -c
              "${CMAKE_CURRENT_LIST_DIR}/missing.cpp" -o "${SCRATCH}/${role}_${flags}.o"
              COMMAND_ERROR_IS_FATAL ANY)
  endforeach()
endforeach()

set(ENV{LC_ALL} C)
# The objects OBJECTS must be linked, or, where there are WORDS, not, and then the linker says these.
function(expect words)
  list(TRANSFORM ARGN REPLACE "(.+)" "${SCRATCH}/\\1.o" OUTPUT_VARIABLE objects)
  execute_process(
    COMMAND "${COMPILER}" ${objects} -pthread -o "${SCRATCH}/missing"
    RESULT_VARIABLE result
    ERROR_VARIABLE text)
  if(words STREQUAL "" AND NOT result EQUAL 0)
    message(FATAL_ERROR "${ARGN} do not link:\n${text}")
  elseif(NOT words STREQUAL "" AND (result EQUAL 0 OR NOT text MATCHES "${words}"))
    message(FATAL_ERROR "${ARGN}: not '${words}' but:\n${text}")
  endif()
  message("${ARGN}: ${text}")
endfunction()

set(name "zero::v[0-9]+_[0-9]+[a-z_]*::implementation_with_([a-z0-9_]+_)?")
expect("" DECLARATIONS_plain IMPLEMENTATION_plain)
expect("" DECLARATIONS_no_rtti IMPLEMENTATION_no_rtti)
expect("" DECLARATIONS_plain IMPLEMENTATION_plain IMPLEMENTATION_no_rtti)
expect("${name}no_rtti" DECLARATIONS_no_rtti IMPLEMENTATION_plain)
expect("${name}[a-z0-9_]+" DECLARATIONS_plain IMPLEMENTATION_no_rtti)
expect("${name}[a-z0-9_]+" DECLARATIONS_plain)
expect("multiple definition|duplicate symbol" DECLARATIONS_plain IMPLEMENTATION_plain IMPLEMENTATION_plain)
