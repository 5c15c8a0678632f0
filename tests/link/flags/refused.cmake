# Two units link under equal flags; under different ones the linker's message has the caller's code.
# Needs COMPILER, INCLUDE and SCRATCH.
cmake_minimum_required(VERSION 3.25)

set(flags_plain -O0)
set(flags_no_rtti -fno-rtti)
file(WRITE "${SCRATCH}/code.cpp" "#include <zero/base/config.hpp>\nname ZERO_NAMESPACE\n")
foreach(flags IN ITEMS plain no_rtti)
  execute_process(
    COMMAND "${COMPILER}" -std=c++20 -I "${INCLUDE}" ${flags_${flags}} -E -P "${SCRATCH}/code.cpp"
    OUTPUT_VARIABLE text COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX MATCH "name (v[0-9][^\n]*)" text "${text}")
  set(name_${flags} "zero::${CMAKE_MATCH_1}")
  foreach(role IN ITEMS CALLER CALLEE)
    execute_process(
      COMMAND "${COMPILER}" -std=c++20 -I "${INCLUDE}" ${flags_${flags}} -D${role} -c
              "${CMAKE_CURRENT_LIST_DIR}/refused.cpp" -o "${SCRATCH}/${role}_${flags}.o"
              COMMAND_ERROR_IS_FATAL ANY)
  endforeach()
endforeach()

set(ENV{LC_ALL} C)
foreach(caller IN ITEMS plain no_rtti)
  foreach(callee IN ITEMS plain no_rtti)
    execute_process(
      COMMAND "${COMPILER}" "${SCRATCH}/CALLER_${caller}.o" "${SCRATCH}/CALLEE_${callee}.o" -pthread
              -o "${SCRATCH}/refused"
      RESULT_VARIABLE result
      ERROR_VARIABLE text)
    set(name "${name_${caller}}")
    if(caller STREQUAL callee)
      if(NOT result EQUAL 0)
        message(FATAL_ERROR "equal flags (${caller}) do not link:\n${text}")
      endif()
    elseif(result EQUAL 0)
      message(FATAL_ERROR "${caller} is handed to ${callee}")
    elseif(NOT text MATCHES "train\\(${name}::Self&, ${name}::ShardedOptimizer<${name}::Self>\\*\\)")
      message(FATAL_ERROR "the linker does not name the flags (${name}):\n${text}")
    endif()
  endforeach()
endforeach()
