# Where only a compiler is: what needs packages is left out, each with a line, and the library installs.
include("${CMAKE_CURRENT_LIST_DIR}/consumer.cmake")

set(project "${ZERO_SOURCE}")
foreach(package IN ITEMS Eigen3 CLI11 nlohmann_json doctest benchmark xxHash MPI LibTorch CUDAToolkit
                         NCCL)
  list(APPEND options "-DCMAKE_DISABLE_FIND_PACKAGE_${package}=ON")
endforeach()

expect_configured(build ${quickly})
foreach(words IN ITEMS "no doctest .Debian: doctest-dev., so these are left out: the tests"
                       "the GPT trainer" "the benchmarks" "the program zero-plan")
  if(NOT text MATCHES "${words}")
    message(FATAL_ERROR "nothing says '${words}':\n${text}")
  endif()
endforeach()
build(build --target example_01_one_rank)
install_and_move("${SCRATCH}/build")
if(NOT EXISTS "${installed}/include/zero/zero.hpp")
  message(FATAL_ERROR "zero.hpp was not installed")
endif()

# A preset that builds the tests does not leave them out.
expect_refused(build "which is the Debian package libeigen3-dev" -DZERO_REQUIRE_PACKAGES=ON)
