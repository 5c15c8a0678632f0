# The unit of the library's flags asks the linker for what it calls, both of the usual policies and
# of none; the others have it. Of the policies that is `step` where nothing is inlined, else what
# never is.
cmake_minimum_required(VERSION 3.25)

foreach(unit IN ITEMS plain vectors compiled)
  execute_process(
    COMMAND "${NM}" --demangle "${${unit}}"
    OUTPUT_VARIABLE text COMMAND_ERROR_IS_FATAL ANY)
  set(expected W)
  if(unit STREQUAL "compiled")
    set(expected U)
  endif()
  foreach(function IN ITEMS "(ShardedOptimizer|Reduction)<[^\n]*>::(step|refuse)[(]"
                            "Partition::Partition(<void>)?[(]std::vector")
    if(NOT text MATCHES "[^\n]* ([UW]) [^\n]*zero::[^\n]*${function}")
      message(FATAL_ERROR "${unit} calls no ${function}")
    endif()
    if(NOT CMAKE_MATCH_1 STREQUAL expected)
      message(FATAL_ERROR "${function} is '${CMAKE_MATCH_1}' in ${unit}, not '${expected}'")
    endif()
  endforeach()
endforeach()
