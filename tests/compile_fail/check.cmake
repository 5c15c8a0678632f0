# Passes when SOURCE does not compile, the compiler's words match the file's '// expect: <regex>',
# and the same file compiles with ZERO_CONTROL. The control is what tells the intended mistake from
# a missing header or a typing error, which would not compile either.
# A file may have a line '// lines: <number>' as well: the most that GCC 12 prints, whose messages are
# counted if COUNT_LINES is on.
# Needs COMPILER, INCLUDE, SOURCE and SCRATCH, a directory for the object file, where a compiler may
# find zero/zero.hpp precompiled. NEVER_LINKED are its flags for what is never linked. With CONTROL off
# the file with ZERO_CONTROL is compiled elsewhere, together with others.
cmake_minimum_required(VERSION 3.25)
include("${CMAKE_CURRENT_LIST_DIR}/../../cmake/expectation.cmake")

zero_read_expectation("${SOURCE}" expect regex)
cmake_path(GET SOURCE STEM name)
# In the C locale GCC quotes with ASCII, which an expression can spell.
set(ENV{LC_ALL} C)

# Headers that stand in for those of a device's runtime.
set(devices "${CMAKE_CURRENT_LIST_DIR}/../emulated/include")
# A whole compilation, not -fsyntax-only, because that skips what is instantiated last.
function(compile out_result out_text)
  set(object "${SCRATCH}/${name}.o")
  file(REMOVE "${object}")
  execute_process(
    COMMAND "${COMPILER}" -std=c++20 ${NEVER_LINKED} -I "${SCRATCH}" -I "${INCLUDE}" -isystem "${devices}" ${ARGN} -c "${SOURCE}" -o "${object}"
    RESULT_VARIABLE result
    OUTPUT_VARIABLE text
    ERROR_VARIABLE text)
  file(REMOVE "${object}")
  set(${out_result}
      "${result}"
      PARENT_SCOPE)
  set(${out_text}
      "${text}"
      PARENT_SCOPE)
endfunction()

if(NOT DEFINED CONTROL OR CONTROL)
  compile(result text -DZERO_CONTROL)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "${SOURCE}: the control build does not compile:\n${text}")
  endif()
endif()
compile(result text)
if(result EQUAL 0)
  message(FATAL_ERROR "${SOURCE}: the mistake compiles")
endif()
if(NOT text MATCHES "${regex}")
  message(FATAL_ERROR "${SOURCE}: the compiler's words do not match '${regex}':\n${text}")
endif()
file(STRINGS "${SOURCE}" most REGEX "^// lines: ")
if(COUNT_LINES AND most)
  string(REGEX REPLACE "^// lines: " "" most "${most}")
  string(REGEX MATCHALL "\n" lines "${text}")
  list(LENGTH lines lines)
  if(NOT lines LESS_EQUAL most)
    message(FATAL_ERROR "${SOURCE}: the compiler prints ${lines} lines, not ${most}:\n${text}")
  endif()
endif()
