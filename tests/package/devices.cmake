# A consumer that asks the installed package for the backends of GPUs, one by one: each finds what it
# needs and nothing else, and one whose dependency is missing says so.
include("${CMAKE_CURRENT_LIST_DIR}/consumer.cmake")

install_and_move("${ZERO_BINARY}")
set(project "${CMAKE_CURRENT_LIST_DIR}/device_consumer")
list(APPEND options "-DCMAKE_PREFIX_PATH=${installed}")
set(without_cuda -DCMAKE_DISABLE_FIND_PACKAGE_CUDAToolkit=ON)
set(ends_with_version "zero ${ZERO_VERSION}\n$")

expect_configured(none "-DZERO_REQUEST=")
if(NOT text MATCHES "variables of other packages: 0[.]")
  message(FATAL_ERROR "zero looks for packages that nobody asked for:\n${text}")
endif()

# NCCL needs CUDA, which is then what is missing.
foreach(component IN ITEMS cuda nccl)
  expect_refused(no_cuda_for_${component} "zero's component 'cuda' needs CUDAToolkit"
                 "-DZERO_REQUEST=COMPONENTS ${component}" ${without_cuda})
endforeach()
expect_configured(optional "-DZERO_REQUEST=OPTIONAL_COMPONENTS nccl" ${without_cuda})

if(HAS_CUDA)
  expect_refused(no_nccl "zero's component 'nccl' needs NCCL" "-DZERO_REQUEST=COMPONENTS nccl"
                 -DCMAKE_DISABLE_FIND_PACKAGE_NCCL=ON)
  expect_configured(cuda "-DZERO_REQUEST=COMPONENTS cuda" "-DCMAKE_CUDA_COMPILER=${CUDA_COMPILER}")
  if(CUDA_COMPILER)
    build(cuda --target consumer_cuda)
    run("${SCRATCH}/cuda/consumer_cuda" "${ends_with_version}")
  endif()
endif()
if(HAS_NCCL)
  expect_configured(nccl "-DZERO_REQUEST=COMPONENTS nccl")
  build(nccl --target consumer_nccl)
  run("${SCRATCH}/nccl/consumer_nccl" "${ends_with_version}")
endif()
