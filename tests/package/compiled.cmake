include("${CMAKE_CURRENT_LIST_DIR}/consumer.cmake")

# The component is what an install with ZERO_COMPILED adds; the consumer links it.
set(consumer "${project}")
set(project "${ZERO_SOURCE}")
expect_configured(zero -DZERO_COMPILED=ON -DZERO_BUILD_TESTS=OFF -DZERO_BUILD_EXAMPLES=OFF -DZERO_BUILD_PROGRAMS=OFF
                  -DZERO_BUILD_BENCH=OFF ${quickly})
build(zero)
install_and_move("${SCRATCH}/zero")

set(project "${consumer}")
expect_configured(build "-DCMAKE_PREFIX_PATH=${installed}" "-DZERO_REQUEST=COMPONENTS compiled")
build_and_run_consumer(build)

# A Makefile's trainer takes from it what is in there, too.
find_program(make make)
find_program(pkg_config pkg-config)
if(make AND pkg_config)
  file(GLOB_RECURSE package "${installed}/*/zero-compiled.pc")
  cmake_path(GET package PARENT_PATH directory)
  set(ENV{PKG_CONFIG_PATH} "${directory}:${installed}/share/pkgconfig:$ENV{PKG_CONFIG_PATH}")
  execute_process(
    COMMAND make -s -C "${CMAKE_CURRENT_LIST_DIR}/make_consumer" consumer "CXX=${COMPILER}"
            "PACKAGES=zero-compiled" "OUT=${SCRATCH}/made" "CPPFLAGS=-DTAKES_COMPILED"
            COMMAND_ERROR_IS_FATAL ANY)
  run("${SCRATCH}/made" "${version_line}")
endif()
