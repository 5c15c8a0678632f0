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
