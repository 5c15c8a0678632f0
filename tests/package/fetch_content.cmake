include("${CMAKE_CURRENT_LIST_DIR}/consumer.cmake")

list(APPEND options "-DZERO_FETCHED=${ZERO_SOURCE}")
expect_configured(build)
build_and_run_consumer(build)

# With every component that can be built here: two at once, as a list, and one by its option.
set(components "")
set(targets consumer)
foreach(component IN ITEMS mpi checkpoint bench libtorch)
  string(TOUPPER "HAS_${component}" has)
  if(${has})
    list(APPEND components ${component})
    # LibTorch's headers take half a minute; an installed zero compiles the same program with them.
    if(NOT component STREQUAL "libtorch")
      list(APPEND targets consumer_${component})
    endif()
  endif()
endforeach()
# From a file, as a list does not survive the way through functions.
file(WRITE "${SCRATCH}/components.cmake" "set(ZERO_COMPONENTS \"${components}\" CACHE STRING \"\")\n")
# An installed zero compiles the whole programs.
expect_configured(components -C "${SCRATCH}/components.cmake" -DCMAKE_CXX_FLAGS=-DHEADERS_ALONE)
build(components --target ${targets})
run("${SCRATCH}/components/consumer" "${version_line}")
if(HAS_CHECKPOINT)
  run("${SCRATCH}/components/consumer_checkpoint" "${checksum_line}")
endif()

# What goes wrong says what to write.
foreach(component IN ITEMS mpi cuda nccl checkpoint bench libtorch)
  expect_refused(
    unasked_${component} "write set[(]ZERO_COMPONENTS ${component}[)] before zero is added"
    "-DALSO_LINK=zero::${component}")
endforeach()
expect_refused(misspelt "ZERO_COMPONENTS has 'chekpoint'" -DZERO_COMPONENTS=chekpoint)
expect_refused(no_mpi "libopenmpi-dev [(]Debian[)]" -DZERO_COMPONENTS=mpi
               -DCMAKE_DISABLE_FIND_PACKAGE_MPI=ON)
expect_refused(no_bench "benchmark [(]Conan[)]" -DZERO_WITH_BENCH=ON
               -DCMAKE_DISABLE_FIND_PACKAGE_benchmark=ON)
