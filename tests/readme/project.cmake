# Passes when a project of PROJECT and MAIN and nothing else configures, builds, and prints PRINTED.
include("${CMAKE_CURRENT_LIST_DIR}/../package/consumer.cmake")

set(project "${SCRATCH}/project")
configure_file("${PROJECT}" "${project}/CMakeLists.txt" COPYONLY)
configure_file("${MAIN}" "${project}/main.cpp" COPYONLY)
expect_configured(build "-DFETCHCONTENT_SOURCE_DIR_ZERO=${ZERO_SOURCE}")
build(build)
file(STRINGS "${PROJECT}" name REGEX "^add_executable")
string(REGEX REPLACE "add_executable.([a-z_]+) .*" "\\1" name "${name}")
execute_process(
  COMMAND "${SCRATCH}/build/${name}"
  OUTPUT_VARIABLE printed
  COMMAND_ERROR_IS_FATAL ANY)
file(READ "${PRINTED}" expected)
if(NOT printed STREQUAL expected)
  message(FATAL_ERROR "the program printed\n${printed}instead of\n${expected}")
endif()
