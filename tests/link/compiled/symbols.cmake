# The unit of the library's flags asks the linker for what it calls of the engine and of the layout;
# the others have it.
cmake_minimum_required(VERSION 3.25)

foreach(unit IN ITEMS plain vectors compiled)
  execute_process(
    COMMAND "${NM}" --demangle "${${unit}}"
    OUTPUT_VARIABLE text COMMAND_ERROR_IS_FATAL ANY)
  set(expected W)
  if(unit STREQUAL "compiled")
    set(expected U)
  endif()
  foreach(function IN ITEMS "detail::Engine::step(<void>)?[(]"
                            "Placement::Placement(<void>)?[(]std::vector")
    if(NOT text MATCHES "[^\n]* ([UW]) [^\n]*zero::[^\n]*${function}")
      message(FATAL_ERROR "${unit} calls no ${function}")
    endif()
    if(NOT CMAKE_MATCH_1 STREQUAL expected)
      message(FATAL_ERROR "${function} is '${CMAKE_MATCH_1}' in ${unit}, not '${expected}'")
    endif()
  endforeach()
endforeach()
