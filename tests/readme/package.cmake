# Passes when BLOCK, put at the end of a project that finds the installed package, builds the
# program NAME from an example's source and the program runs.
cmake_minimum_required(VERSION 3.25)

file(REMOVE_RECURSE "${SCRATCH}")
execute_process(COMMAND "${CMAKE_COMMAND}" --install "${ZERO_BINARY}" --prefix "${SCRATCH}/prefix"
                        COMMAND_ERROR_IS_FATAL ANY OUTPUT_QUIET)
file(READ "${BLOCK}" block)
file(WRITE "${SCRATCH}/project/CMakeLists.txt"
     "cmake_minimum_required(VERSION 3.25)\nproject(readme LANGUAGES CXX)\n${block}")
configure_file("${ZERO_SOURCE}/examples/01_one_rank.cpp" "${SCRATCH}/project/${NAME}.cpp" COPYONLY)
execute_process(
  COMMAND
    "${CMAKE_COMMAND}" -S "${SCRATCH}/project" -B "${SCRATCH}/build" -G "${GENERATOR}"
    "-DCMAKE_MAKE_PROGRAM=${MAKE_PROGRAM}" "-DCMAKE_CXX_COMPILER=${COMPILER}"
    "-DCMAKE_PREFIX_PATH=${SCRATCH}/prefix" COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND "${CMAKE_COMMAND}" --build "${SCRATCH}/build" COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND "${SCRATCH}/build/${NAME}" COMMAND_ERROR_IS_FATAL ANY)
