include("${CMAKE_CURRENT_LIST_DIR}/consumer.cmake")

# What an install with ZERO_C_LIBRARY adds serves a trainer in C that no C++ compiler sees.
set(project "${ZERO_SOURCE}")
expect_configured(zero -DZERO_C_LIBRARY=ON -DZERO_BUILD_TESTS=OFF -DZERO_BUILD_EXAMPLES=OFF -DZERO_BUILD_PROGRAMS=OFF
                  -DZERO_BUILD_BENCH=OFF -DZERO_WITH_MPI=OFF ${quickly})
build(zero)
install_and_move("${SCRATCH}/zero")

file(GLOB_RECURSE library "${installed}/*/libzero_c.so.*.*.*")
file(GLOB_RECURSE package "${installed}/*/zero-c.pc")
cmake_path(GET library PARENT_PATH libraries)
cmake_path(GET package PARENT_PATH packages)

# Its SONAME has the minor version, and nothing but the interface is visible.
execute_process(
  COMMAND "${OBJDUMP}" -p "${library}"
  OUTPUT_VARIABLE text COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCH "^[0-9]+[.][0-9]+" minor "${ZERO_VERSION}")
if(NOT text MATCHES "SONAME +libzero_c[.]so[.]${minor}\n")
  message(FATAL_ERROR "the SONAME is not libzero_c.so.${minor}")
endif()
execute_process(
  COMMAND "${NM}" --dynamic --defined-only "${library}"
  OUTPUT_VARIABLE symbols COMMAND_ERROR_IS_FATAL ANY)
string(REGEX REPLACE "[0-9a-f]+ T zero_[a-z_0-9]+\n" "" others "${symbols}")
if(NOT others STREQUAL "" OR NOT symbols MATCHES " T zero_step\n")
  message(FATAL_ERROR "visible in ${library}: ${others}")
endif()

# A trainer in C, and one in Fortran, by pkg-config.
set(ENV{PKG_CONFIG_PATH} "${packages}:$ENV{PKG_CONFIG_PATH}")
set(ENV{LD_LIBRARY_PATH} "${libraries}:$ENV{LD_LIBRARY_PATH}")
execute_process(
  COMMAND "${PKG_CONFIG}" --cflags --libs zero-c
  OUTPUT_VARIABLE flags COMMAND_ERROR_IS_FATAL ANY)
separate_arguments(flags UNIX_COMMAND "${flags}")
execute_process(
  COMMAND "${C_COMPILER}" -std=c11 "${ZERO_SOURCE}/examples/c/01_train.c" -o "${SCRATCH}/train"
          ${flags} -lm COMMAND_ERROR_IS_FATAL ANY)
execute_process(
  COMMAND "${SCRATCH}/train"
  OUTPUT_VARIABLE text COMMAND_ERROR_IS_FATAL ANY)
message(STATUS "${text}")

# One that knows the headers of 0.2 alone, where the library has checkpoints.
if(symbols MATCHES " T zero_checkpoint_save\n")
  set(tests "${ZERO_SOURCE}/tests/c_api")
  execute_process(
    COMMAND "${C_COMPILER}" -std=c11 "-I${tests}/abi_0_2" "${tests}/abi_0_2.c" -o "${SCRATCH}/abi"
            ${flags} -lm COMMAND_ERROR_IS_FATAL ANY)
  file(MAKE_DIRECTORY "${SCRATCH}/run")
  execute_process(COMMAND "${SCRATCH}/abi" "${SCRATCH}/run" COMMAND_ERROR_IS_FATAL ANY)
endif()
if(FORTRAN_COMPILER)
  execute_process(
    COMMAND "${FORTRAN_COMPILER}" -std=f2008 -Wall -Werror
            "${ZERO_SOURCE}/examples/c/02_fit.f90" -o "${SCRATCH}/fit" ${flags}
    WORKING_DIRECTORY "${SCRATCH}" COMMAND_ERROR_IS_FATAL ANY)
  execute_process(
    COMMAND "${SCRATCH}/fit"
    OUTPUT_VARIABLE text COMMAND_ERROR_IS_FATAL ANY)
  message(STATUS "${text}")
endif()
