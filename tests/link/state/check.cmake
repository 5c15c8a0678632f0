# Compiles SOURCE and lists the writable variables of namespace zero in it; they must be those that
# the file's '// state: <regex>, ...' names, in any order, or 'none'. State in a header differs
# between shared objects, and a trainer cannot see it.
# Needs COMPILER, OBJDUMP, INCLUDE, SOURCE and SCRATCH (a directory for the object file).
cmake_minimum_required(VERSION 3.25)
include("${CMAKE_CURRENT_LIST_DIR}/../../../cmake/expectation.cmake")

zero_read_expectation("${SOURCE}" state expected)
cmake_path(GET SOURCE STEM name)
set(object "${SCRATCH}/${name}.o")
file(REMOVE "${object}")
# -O0, so that nothing is optimised away; position-independent, as in a shared object.
execute_process(COMMAND "${COMPILER}" -std=c++20 -O0 -fPIC -I "${INCLUDE}" -c "${SOURCE}" -o
                        "${object}" COMMAND_ERROR_IS_FATAL ANY)
execute_process(
  COMMAND "${OBJDUMP}" --syms --demangle "${object}"
  OUTPUT_VARIABLE symbols
  COMMAND_ERROR_IS_FATAL ANY)
file(REMOVE "${object}")

# .data.rel.ro is constant once addresses are known: virtual tables and the like.
string(REGEX MATCHALL "[^\n]* \\.t?(data|bss)[^\n]*zero::[^\n]*" lines "${symbols}")
list(FILTER lines EXCLUDE REGEX " \\.data\\.rel\\.ro")
list(JOIN lines "\n" lines)

if(expected STREQUAL "none")
  if(NOT lines STREQUAL "")
    message(FATAL_ERROR "${SOURCE}: writable state:\n${lines}")
  endif()
  if(NOT symbols MATCHES "zero::")
    message(FATAL_ERROR "${SOURCE}: no symbol of the library at all: the check sees nothing")
  endif()
  return()
endif()
string(REPLACE ", " ";" expected "${expected}")
foreach(regex IN LISTS expected)
  if(NOT lines MATCHES "${regex}")
    message(FATAL_ERROR "${SOURCE}: '${regex}' was not found in:\n${lines}\n${symbols}")
  endif()
endforeach()
if(lines MATCHES "constant")
  message(FATAL_ERROR "${SOURCE}: a constant is taken for state:\n${lines}")
endif()
