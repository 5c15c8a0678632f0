include("${CMAKE_CURRENT_LIST_DIR}/consumer.cmake")

# Installed to one place and used from another: a package that remembers a path fails here.
file(REMOVE_RECURSE "${SCRATCH}")
execute_process(COMMAND "${CMAKE_COMMAND}" --install "${ZERO_BINARY}" --prefix "${SCRATCH}/staged"
                        COMMAND_ERROR_IS_FATAL ANY OUTPUT_QUIET)
file(RENAME "${SCRATCH}/staged" "${SCRATCH}/moved")

# Programs name the files of their assertions.
file(GLOB_RECURSE installed "${SCRATCH}/moved/include/*" "${SCRATCH}/moved/share/*"
     "${SCRATCH}/moved/lib/*")
foreach(file IN LISTS installed)
  file(READ "${file}" text)
  foreach(path IN ITEMS "${ZERO_SOURCE}" "${SCRATCH}")
    string(FIND "${text}" "${path}" position)
    if(NOT position EQUAL -1)
      message(FATAL_ERROR "${file} contains the path ${path}")
    endif()
  endforeach()
endforeach()

function(configure name out_result out_text request)
  configure_consumer("${SCRATCH}/${name}" result text "-DCMAKE_PREFIX_PATH=${SCRATCH}/moved"
                     "-DZERO_REQUEST=${request}" ${ARGN})
  set(${out_result}
      "${result}"
      PARENT_SCOPE)
  set(${out_text}
      "${text}"
      PARENT_SCOPE)
endfunction()

string(REGEX MATCH "^[0-9]+\\.[0-9]+" this_minor "${ZERO_VERSION}")
configure(build result text "${this_minor}")
if(NOT result EQUAL 0)
  message(FATAL_ERROR "${text}")
endif()
build_and_run_consumer("${SCRATCH}/build")

configure(optional result text "OPTIONAL_COMPONENTS no_such_component")
if(NOT result EQUAL 0)
  message(FATAL_ERROR "an optional component that is not there must not be an error:\n${text}")
endif()

configure(unknown result text "COMPONENTS no_such_component")
if(result EQUAL 0 OR NOT text MATCHES "has no component 'no_such_component'")
  message(FATAL_ERROR "an unknown component was not refused by name:\n${text}")
endif()

# A component is found with its package, which only those look for who ask.
configure(without_mpi result text "")
if(text MATCHES "MPI")
  message(FATAL_ERROR "zero looked for MPI without being asked:\n${text}")
endif()
if(HAS_MPI)
  configure(mpi result text "COMPONENTS mpi")
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "${text}")
  endif()
  execute_process(COMMAND "${CMAKE_COMMAND}" --build "${SCRATCH}/mpi" --target consumer_mpi
                          COMMAND_ERROR_IS_FATAL ANY)
endif()
configure(
  no_mpi
  result
  text
  "COMPONENTS mpi"
  -DCMAKE_DISABLE_FIND_PACKAGE_MPI=ON)
if(result EQUAL 0 OR NOT text MATCHES "zero's component 'mpi' needs MPI")
  message(FATAL_ERROR "a component without its package was not refused by name:\n${text}")
endif()

if(HAS_CHECKPOINT)
  configure(checkpoint result text "COMPONENTS checkpoint")
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "${text}")
  endif()
  execute_process(COMMAND "${CMAKE_COMMAND}" --build "${SCRATCH}/checkpoint" --target
                          consumer_checkpoint COMMAND_ERROR_IS_FATAL ANY)
  execute_process(
    COMMAND "${SCRATCH}/checkpoint/consumer_checkpoint"
    WORKING_DIRECTORY "${SCRATCH}/checkpoint"
    OUTPUT_VARIABLE text
    COMMAND_ERROR_IS_FATAL ANY)
  if(NOT text STREQUAL "loaded step 1\n")
    message(FATAL_ERROR "the consumer of checkpoints printed '${text}'")
  endif()
endif()
configure(
  no_checkpoint
  result
  text
  "COMPONENTS checkpoint"
  -DCMAKE_DISABLE_FIND_PACKAGE_xxHash=ON)
if(result EQUAL 0 OR NOT text MATCHES "zero's component 'checkpoint' needs xxHash")
  message(FATAL_ERROR "a component without its package was not refused by name:\n${text}")
endif()

if(HAS_BENCH)
  configure(bench result text "COMPONENTS bench")
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "${text}")
  endif()
  execute_process(COMMAND "${CMAKE_COMMAND}" --build "${SCRATCH}/bench" --target consumer_bench
                          COMMAND_ERROR_IS_FATAL ANY)
  execute_process(COMMAND "${SCRATCH}/bench/consumer_bench" --max 1K --rounds 1
                          COMMAND_ERROR_IS_FATAL ANY)
endif()
configure(
  no_bench
  result
  text
  "COMPONENTS bench"
  -DCMAKE_DISABLE_FIND_PACKAGE_benchmark=ON)
if(result EQUAL 0 OR NOT text MATCHES "zero's component 'bench' needs benchmark")
  message(FATAL_ERROR "a component without its package was not refused by name:\n${text}")
endif()

if(HAS_LIBTORCH)
  configure(libtorch result text "COMPONENTS libtorch")
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "${text}")
  endif()
  execute_process(COMMAND "${CMAKE_COMMAND}" --build "${SCRATCH}/libtorch" --target consumer_libtorch
                          COMMAND_ERROR_IS_FATAL ANY)
  execute_process(COMMAND "${SCRATCH}/libtorch/consumer_libtorch" COMMAND_ERROR_IS_FATAL ANY)
endif()
configure(
  no_libtorch
  result
  text
  "COMPONENTS libtorch"
  -DCMAKE_DISABLE_FIND_PACKAGE_LibTorch=ON)
if(result EQUAL 0 OR NOT text MATCHES "zero's component 'libtorch' needs LibTorch")
  message(FATAL_ERROR "a component without its package was not refused by name:\n${text}")
endif()

# What a system cannot have is said when it is asked for, not by a compiler later.
file(WRITE "${SCRATCH}/windows.cmake"
     "set(CMAKE_SYSTEM_NAME Windows)\nset(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY)\n")
foreach(component IN ITEMS mpi checkpoint libtorch)
  configure(
    ${component}_on_windows
    result
    text
    "COMPONENTS ${component}"
    "-DCMAKE_TOOLCHAIN_FILE=${SCRATCH}/windows.cmake")
  if(result EQUAL 0 OR NOT text MATCHES "zero's component '${component}' does not support Windows")
    message(FATAL_ERROR "a component was not refused on a system that it does not support:\n${text}")
  endif()
endforeach()

configure(newer result text "1000.0")
if(result EQUAL 0 OR NOT text MATCHES "requested version \"1000.0\"")
  message(FATAL_ERROR "a version that is not there was not refused:\n${text}")
endif()
