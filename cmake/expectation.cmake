# Reads the one line '// <key>: <regex>' of a source file. A file with no such line, or with two,
# is a mistake in the test, never a test that passes.
function(zero_read_expectation source key out)
  file(READ "${source}" text)
  string(REGEX MATCHALL "(^|\n)// ${key}: " lines "${text}")
  list(LENGTH lines count)
  if(NOT count EQUAL 1)
    message(FATAL_ERROR "${source}: needs exactly one line '// ${key}: <regex>', has ${count}")
  endif()
  string(REGEX MATCH "(^|\n)// ${key}: ([^\n]+)" line "${text}")
  string(STRIP "${CMAKE_MATCH_2}" regex)
  set(${out}
      "${regex}"
      PARENT_SCOPE)
endfunction()
