# A consumer that asks the installed package for the backends of GPUs, one by one: each finds what it
# needs and nothing else, and one whose dependency is missing says so.
include("${CMAKE_CURRENT_LIST_DIR}/consumer.cmake")

file(REMOVE_RECURSE "${SCRATCH}")
execute_process(COMMAND "${CMAKE_COMMAND}" --install "${ZERO_BINARY}" --prefix "${SCRATCH}/zero"
                        COMMAND_ERROR_IS_FATAL ANY OUTPUT_QUIET)

function(configure name request out_result out_text)
  configure_project("${CMAKE_CURRENT_FUNCTION_LIST_DIR}/device_consumer" "${SCRATCH}/${name}" result
                    text "-DCMAKE_PREFIX_PATH=${SCRATCH}/zero" "-DZERO_REQUEST=${request}" ${ARGN})
  set(${out_result}
      "${result}"
      PARENT_SCOPE)
  set(${out_text}
      "${text}"
      PARENT_SCOPE)
endfunction()

function(expect_refusal name request words)
  configure(${name} "${request}" result text ${ARGN})
  if(result EQUAL 0 OR NOT text MATCHES "${words}")
    message(FATAL_ERROR "'${request}' was not refused with '${words}':\n${text}")
  endif()
endfunction()

function(build_and_run name program)
  execute_process(COMMAND "${CMAKE_COMMAND}" --build "${SCRATCH}/${name}" --target ${program}
                          COMMAND_ERROR_IS_FATAL ANY)
  execute_process(
    COMMAND "${SCRATCH}/${name}/${program}"
    OUTPUT_VARIABLE text
    COMMAND_ERROR_IS_FATAL ANY)
  if(NOT text MATCHES "zero ${ZERO_VERSION}\n$")
    message(FATAL_ERROR "${program} printed '${text}' instead of 'zero ${ZERO_VERSION}'")
  endif()
endfunction()

configure(none "" result text)
if(NOT result EQUAL 0 OR NOT text MATCHES "variables of other packages: 0[.]")
  message(FATAL_ERROR "zero looks for packages that nobody asked for:\n${text}")
endif()

expect_refusal(no_cuda "COMPONENTS cuda" "zero's component 'cuda' needs CUDAToolkit"
               -DCMAKE_DISABLE_FIND_PACKAGE_CUDAToolkit=ON)
# NCCL needs CUDA, which is then what is missing.
expect_refusal(no_cuda_for_nccl "COMPONENTS nccl" "zero's component 'cuda' needs CUDAToolkit"
               -DCMAKE_DISABLE_FIND_PACKAGE_CUDAToolkit=ON)
configure(optional "OPTIONAL_COMPONENTS nccl" result text
          -DCMAKE_DISABLE_FIND_PACKAGE_CUDAToolkit=ON)
if(NOT result EQUAL 0)
  message(FATAL_ERROR "an optional component that is not there must not be an error:\n${text}")
endif()

if(HAS_CUDA)
  expect_refusal(no_nccl "COMPONENTS nccl" "zero's component 'nccl' needs NCCL"
                 -DCMAKE_DISABLE_FIND_PACKAGE_NCCL=ON)
  configure(cuda "COMPONENTS cuda" result text "-DCMAKE_CUDA_COMPILER=${CUDA_COMPILER}")
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "${text}")
  endif()
  if(CUDA_COMPILER)
    build_and_run(cuda consumer_cuda)
  endif()
endif()
if(HAS_NCCL)
  configure(nccl "COMPONENTS nccl" result text)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "${text}")
  endif()
  build_and_run(nccl consumer_nccl)
endif()
