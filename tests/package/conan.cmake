# A trainer whose packages come from Conan 2, in a home of its own and without a network.
file(REMOVE_RECURSE "${SCRATCH}")
file(COPY "${CMAKE_CURRENT_LIST_DIR}/consumer" "${CMAKE_CURRENT_LIST_DIR}/conan_consumer"
     DESTINATION "${SCRATCH}")
set(ENV{CONAN_HOME} "${SCRATCH}/home")
set(ENV{CXX} "${COMPILER}")
set(conan "${PYTHON}" -m conans.conan)
execute_process(COMMAND ${conan} profile detect COMMAND_ERROR_IS_FATAL ANY OUTPUT_QUIET ERROR_QUIET)
execute_process(
  COMMAND ${conan} create "${ZERO_SOURCE}" --test-folder "${SCRATCH}/conan_consumer" --no-remote
  RESULT_VARIABLE result
  OUTPUT_VARIABLE text
  ERROR_VARIABLE text)
if(NOT result EQUAL 0 OR NOT text MATCHES "zero/${ZERO_VERSION} .*\nzero ${ZERO_VERSION}\n")
  message(FATAL_ERROR "${text}")
endif()
