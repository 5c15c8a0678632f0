include("${CMAKE_CURRENT_LIST_DIR}/consumer.cmake")

file(REMOVE_RECURSE "${SCRATCH}")
configure_consumer("${SCRATCH}/build" result text "-DZERO_FETCHED=${ZERO_SOURCE}")
if(NOT result EQUAL 0)
  message(FATAL_ERROR "${text}")
endif()
build_and_run_consumer("${SCRATCH}/build")
