include("${CMAKE_CURRENT_LIST_DIR}/consumer.cmake")

# The component is what an install with ZERO_COMPILED adds; the consumer links it.
file(REMOVE_RECURSE "${SCRATCH}")
execute_process(
  COMMAND
    "${CMAKE_COMMAND}" -S "${ZERO_SOURCE}" -B "${SCRATCH}/zero" -G "${GENERATOR}"
    "-DCMAKE_MAKE_PROGRAM=${MAKE_PROGRAM}" "-DCMAKE_CXX_COMPILER=${COMPILER}" -DZERO_COMPILED=ON
    -DZERO_BUILD_TESTS=OFF -DZERO_BUILD_EXAMPLES=OFF -DZERO_BUILD_BENCH=OFF
    COMMAND_ERROR_IS_FATAL ANY OUTPUT_QUIET)
execute_process(COMMAND "${CMAKE_COMMAND}" --build "${SCRATCH}/zero" COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND "${CMAKE_COMMAND}" --install "${SCRATCH}/zero" --prefix "${SCRATCH}/staged"
                        COMMAND_ERROR_IS_FATAL ANY OUTPUT_QUIET)
file(RENAME "${SCRATCH}/staged" "${SCRATCH}/moved")

configure_consumer("${SCRATCH}/build" result text "-DCMAKE_PREFIX_PATH=${SCRATCH}/moved"
                   "-DZERO_REQUEST=COMPONENTS compiled")
if(NOT result EQUAL 0)
  message(FATAL_ERROR "${text}")
endif()
build_and_run_consumer("${SCRATCH}/build")

# A Makefile's trainer takes from it what is in there, too.
find_program(make make)
find_program(pkg_config pkg-config)
if(make AND pkg_config)
  file(GLOB_RECURSE package "${SCRATCH}/moved/*/zero-compiled.pc")
  cmake_path(GET package PARENT_PATH directory)
  set(ENV{PKG_CONFIG_PATH} "${directory}:${SCRATCH}/moved/share/pkgconfig:$ENV{PKG_CONFIG_PATH}")
  execute_process(
    COMMAND make -s -C "${CMAKE_CURRENT_LIST_DIR}/make_consumer" consumer "CXX=${COMPILER}"
            "PACKAGES=zero-compiled" "OUT=${SCRATCH}/made" "CPPFLAGS=-DTAKES_COMPILED"
            COMMAND_ERROR_IS_FATAL ANY)
  run_consumer("${SCRATCH}/made")
endif()
