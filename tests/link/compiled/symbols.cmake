# The unit of the library's flags asks the linker for what is never inlined; the others have it.
cmake_minimum_required(VERSION 3.25)

foreach(unit IN ITEMS plain vectors compiled)
  execute_process(
    COMMAND "${NM}" --demangle "${${unit}}"
    OUTPUT_VARIABLE text COMMAND_ERROR_IS_FATAL ANY)
  if(NOT text MATCHES "[^\n]* ([UW]) zero::[^\n]*Reduction<[^\n]*>::refuse[(]")
    message(FATAL_ERROR "${unit} cannot refuse a gradient")
  endif()
  set(expected W)
  if(unit STREQUAL "compiled")
    set(expected U)
  endif()
  if(NOT CMAKE_MATCH_1 STREQUAL expected)
    message(FATAL_ERROR "a refusal is '${CMAKE_MATCH_1}' in ${unit}, not '${expected}'")
  endif()
endforeach()
