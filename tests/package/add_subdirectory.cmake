include("${CMAKE_CURRENT_LIST_DIR}/consumer.cmake")

expect_configured(build "-DZERO_SOURCE=${ZERO_SOURCE}")
build_and_run_consumer(build)
