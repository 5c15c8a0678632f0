# The header is the one home of the version: a trainer that vendors the headers without CMake, and
# ranks that compare versions, read it from there.
function(zero_read_version header out)
  if(NOT EXISTS "${header}")
    message(FATAL_ERROR "zero: ${header} is missing; the version is read from it")
  endif()
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${header}")
  file(READ "${header}" text)
  set(numbers "")
  foreach(part IN ITEMS MAJOR MINOR PATCH)
    if(NOT text MATCHES "#define ZERO_VERSION_${part} ([0-9]+)")
      message(FATAL_ERROR "zero: ${header} does not define ZERO_VERSION_${part} as a number")
    endif()
    list(APPEND numbers ${CMAKE_MATCH_1})
  endforeach()
  list(JOIN numbers "." version)
  set(${out}
      ${version}
      PARENT_SCOPE)
endfunction()
