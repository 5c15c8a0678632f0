# Each program of TOGETHER must print the lines that those of ALONE print, of one unit each.
cmake_minimum_required(VERSION 3.25)

function(lines_of program out)
  execute_process(
    COMMAND "${program}"
    RESULT_VARIABLE result
    OUTPUT_VARIABLE text)
  if(text MATCHES "skipped: ")
    message("${text}")
  elseif(NOT result EQUAL 0)
    message(FATAL_ERROR "${program} failed (${result}):\n${text}")
  endif()
  set(${out}
      "${text}"
      PARENT_SCOPE)
endfunction()

set(expected "")
foreach(program IN LISTS ALONE)
  lines_of("${program}" lines)
  string(APPEND expected "${lines}")
endforeach()
foreach(program IN LISTS TOGETHER)
  lines_of("${program}" lines)
  if(NOT lines STREQUAL expected)
    message(FATAL_ERROR "${program} prints\n${lines}where its units alone print\n${expected}")
  endif()
endforeach()
message("${expected}")
