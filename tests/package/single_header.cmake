include("${CMAKE_CURRENT_LIST_DIR}/consumer.cmake")

# A trainer without a build system: a copy of include/, or the one header that cmake/amalgamate.py
# writes. Both are the same library.
file(COPY "${ZERO_SOURCE}/include" DESTINATION "${SCRATCH}")
set(amalgamate "${PYTHON}" "${ZERO_SOURCE}/cmake/amalgamate.py" -o "${SCRATCH}/one/zero.hpp")
execute_process(COMMAND ${amalgamate} RESULT_VARIABLE result ERROR_QUIET)
if(result EQUAL 0)
  message(FATAL_ERROR "a directory that is not there was no error")
endif()
file(MAKE_DIRECTORY "${SCRATCH}/one")
execute_process(COMMAND ${amalgamate} COMMAND_ERROR_IS_FATAL ANY)
file(READ "${project}/main.cpp" text)
string(REPLACE "#include <zero/base/version.hpp>\n" "" text "${text}")
string(REPLACE "<zero/zero.hpp>" "\"zero.hpp\"" text "${text}")
file(WRITE "${SCRATCH}/one/main.cpp" "${text}")

# Warnings that the other headers' users turn off with -isystem are off in the one header.
set(strict -Wall -Wextra -Wconversion -Werror)
function(compile name)
  execute_process(COMMAND "${COMPILER}" -std=c++20 ${ARGN} -c -o "${SCRATCH}/${name}.o"
                          COMMAND_ERROR_IS_FATAL ANY)
  execute_process(COMMAND "${COMPILER}" "${SCRATCH}/${name}.o" -o "${SCRATCH}/${name}" -pthread
                          COMMAND_ERROR_IS_FATAL ANY)
  run("${SCRATCH}/${name}" "${version_line}")
  execute_process(
    COMMAND nm --format=posix --extern-only --defined-only "${SCRATCH}/${name}.o"
    OUTPUT_VARIABLE symbols
    COMMAND_ERROR_IS_FATAL ANY)
  # Names and kinds; addresses are the compiler's own business.
  string(REGEX MATCHALL "[^\n ]+ [A-Za-z]" symbols "${symbols}")
  list(SORT symbols)
  set(symbols_${name}
      "${symbols}"
      PARENT_SCOPE)
endfunction()

compile(copied ${strict} -I "${SCRATCH}/include" "${project}/main.cpp")
compile(single ${strict} -Wshadow "${SCRATCH}/one/main.cpp")
list(LENGTH symbols_single count)
if(count LESS 50 OR NOT symbols_copied STREQUAL symbols_single)
  message(FATAL_ERROR "the symbols differ:\n${symbols_copied}\n${symbols_single}")
endif()

# The one header does what the others do where bodies are compiled in another unit.
file(WRITE "${SCRATCH}/one/bodies.cpp" "#define ZERO_IMPLEMENTATION\n#include \"zero.hpp\"\n")
execute_process(COMMAND "${COMPILER}" -std=c++20 ${strict} -DZERO_DECLARATIONS -c
                        "${SCRATCH}/one/main.cpp" -o "${SCRATCH}/apart.o" COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND "${COMPILER}" "${SCRATCH}/apart.o" -o "${SCRATCH}/apart" -pthread
                RESULT_VARIABLE result ERROR_QUIET)
if(result EQUAL 0)
  message(FATAL_ERROR "a unit that has declarations alone needs no other")
endif()
execute_process(COMMAND "${COMPILER}" -std=c++20 ${strict} -c "${SCRATCH}/one/bodies.cpp" -o
                        "${SCRATCH}/bodies.o" COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND "${COMPILER}" "${SCRATCH}/apart.o" "${SCRATCH}/bodies.o" -o
                        "${SCRATCH}/apart" -pthread COMMAND_ERROR_IS_FATAL ANY)
run("${SCRATCH}/apart" "${version_line}")
