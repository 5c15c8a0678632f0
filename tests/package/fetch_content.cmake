include("${CMAKE_CURRENT_LIST_DIR}/consumer.cmake")

file(REMOVE_RECURSE "${SCRATCH}")
configure_consumer("${SCRATCH}/build" result text "-DZERO_FETCHED=${ZERO_SOURCE}")
if(NOT result EQUAL 0)
  message(FATAL_ERROR "${text}")
endif()
build_and_run_consumer("${SCRATCH}/build")

# With every component that can be built here: two at once, as a list, and one by its option.
function(configure name out_result out_text)
  configure_consumer("${SCRATCH}/${name}" result text "-DZERO_FETCHED=${ZERO_SOURCE}" ${ARGN})
  set(${out_result}
      "${result}"
      PARENT_SCOPE)
  set(${out_text}
      "${text}"
      PARENT_SCOPE)
endfunction()

set(components "")
foreach(component IN ITEMS mpi checkpoint bench libtorch)
  string(TOUPPER "HAS_${component}" has)
  if(${has})
    list(APPEND components ${component})
  endif()
endforeach()
# From a file, as a list does not survive the way through functions.
file(WRITE "${SCRATCH}/components.cmake" "set(ZERO_COMPONENTS \"${components}\" CACHE STRING \"\")\n")
configure(components result text -C "${SCRATCH}/components.cmake")
if(NOT result EQUAL 0)
  message(FATAL_ERROR "${text}")
endif()
build_and_run_consumer("${SCRATCH}/components")
if(HAS_CHECKPOINT)
  execute_process(
    COMMAND "${SCRATCH}/components/consumer_checkpoint"
    WORKING_DIRECTORY "${SCRATCH}/components"
    OUTPUT_VARIABLE text
    COMMAND_ERROR_IS_FATAL ANY)
  if(NOT text STREQUAL "loaded step 1\n")
    message(FATAL_ERROR "the consumer of checkpoints printed '${text}'")
  endif()
endif()

# What goes wrong says what to write.
function(refused name words)
  configure(${name} result text ${ARGN})
  if(result EQUAL 0 OR NOT text MATCHES "${words}")
    message(FATAL_ERROR "${name}: not refused by '${words}':\n${text}")
  endif()
endfunction()

foreach(component IN ITEMS mpi cuda nccl checkpoint bench libtorch)
  refused(unasked_${component} "write set[(]ZERO_COMPONENTS ${component}[)] before zero is added"
          "-DALSO_LINK=zero::${component}")
endforeach()
refused(misspelt "ZERO_COMPONENTS has 'chekpoint'" -DZERO_COMPONENTS=chekpoint)
refused(no_mpi "libopenmpi-dev [(]Debian[)]" -DZERO_COMPONENTS=mpi -DCMAKE_DISABLE_FIND_PACKAGE_MPI=ON)
refused(no_bench "benchmark [(]Conan[)]" -DZERO_WITH_BENCH=ON
        -DCMAKE_DISABLE_FIND_PACKAGE_benchmark=ON)
