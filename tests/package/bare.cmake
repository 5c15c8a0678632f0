# Where only a compiler is: what needs packages is left out, each with a line, and the library installs.
include("${CMAKE_CURRENT_LIST_DIR}/consumer.cmake")

file(REMOVE_RECURSE "${SCRATCH}")
set(packages Eigen3 CLI11 nlohmann_json doctest benchmark xxHash MPI LibTorch CUDAToolkit NCCL)
list(TRANSFORM packages PREPEND "-DCMAKE_DISABLE_FIND_PACKAGE_" OUTPUT_VARIABLE without)
list(TRANSFORM without APPEND "=ON")

configure_project("${ZERO_SOURCE}" "${SCRATCH}/build" result text ${without})
if(NOT result EQUAL 0)
  message(FATAL_ERROR "${text}")
endif()
foreach(words IN ITEMS "no doctest .Debian: doctest-dev., so these are left out: the tests"
                       "the GPT trainer" "the benchmarks" "the program zero-plan")
  if(NOT text MATCHES "${words}")
    message(FATAL_ERROR "nothing says '${words}':\n${text}")
  endif()
endforeach()
execute_process(COMMAND "${CMAKE_COMMAND}" --build "${SCRATCH}/build" --target example_01_one_rank
                        COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND "${CMAKE_COMMAND}" --install "${SCRATCH}/build" --prefix "${SCRATCH}/prefix"
                        COMMAND_ERROR_IS_FATAL ANY OUTPUT_QUIET)
if(NOT EXISTS "${SCRATCH}/prefix/include/zero/zero.hpp")
  message(FATAL_ERROR "zero.hpp was not installed")
endif()

# A preset that builds the tests does not leave them out.
configure_project("${ZERO_SOURCE}" "${SCRATCH}/build" result text ${without} -DZERO_REQUIRE_PACKAGES=ON)
if(result EQUAL 0 OR NOT text MATCHES "which is the Debian package libeigen3-dev")
  message(FATAL_ERROR "a missing package was not refused:\n${text}")
endif()
