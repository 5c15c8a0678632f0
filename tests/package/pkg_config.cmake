include("${CMAKE_CURRENT_LIST_DIR}/consumer.cmake")

# Used by a trainer with a Makefile.
install_and_move("${ZERO_BINARY}")
set(ENV{PKG_CONFIG_PATH} "${installed}/share/pkgconfig:$ENV{PKG_CONFIG_PATH}")

function(make target packages)
  execute_process(
    COMMAND make -s -C "${CMAKE_CURRENT_FUNCTION_LIST_DIR}/make_consumer" ${target} "CXX=${COMPILER}"
            "PACKAGES=${packages}" "OUT=${SCRATCH}/${target}" "CPPFLAGS=-DHEADERS_ALONE" COMMAND_ERROR_IS_FATAL ANY)
endfunction()

execute_process(
  COMMAND pkg-config --modversion zero
  OUTPUT_VARIABLE version
  COMMAND_ERROR_IS_FATAL ANY)
if(NOT version STREQUAL "${ZERO_VERSION}\n")
  message(FATAL_ERROR "pkg-config says version '${version}' of zero ${ZERO_VERSION}")
endif()
make(consumer zero)
run("${SCRATCH}/consumer" "${version_line}")
# The whole programs have been compiled with a package of CMake's.
if(HAS_CHECKPOINT)
  make(consumer_checkpoint zero-checkpoint)
  run("${SCRATCH}/consumer_checkpoint" "${checksum_line}")
endif()
if(HAS_BENCH)
  make(consumer_bench zero-bench)
endif()
find_program(mpicxx mpicxx)
if(HAS_MPI AND mpicxx)
  make(consumer_mpi zero-mpi)
endif()

function(expect_libraries package)
  execute_process(
    COMMAND pkg-config --libs ${package}
    OUTPUT_VARIABLE text
    COMMAND_ERROR_IS_FATAL ANY)
  foreach(library IN LISTS ARGN)
    # A newer pkg-config leaves no space at the end.
    if(NOT text MATCHES "${library}[ \n]")
      message(FATAL_ERROR "pkg-config --libs ${package} does not say ${library}: ${text}")
    endif()
  endforeach()
endfunction()

expect_libraries(zero -pthread)
expect_libraries(zero-cuda -lcudart -pthread)
expect_libraries(zero-nccl -lnccl -lcudart -pthread)
if(HAS_CHECKPOINT)
  expect_libraries(zero-checkpoint -lxxhash -pthread)
endif()
