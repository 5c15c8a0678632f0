include("${CMAKE_CURRENT_LIST_DIR}/consumer.cmake")

install_and_move("${ZERO_BINARY}")
list(APPEND options "-DCMAKE_PREFIX_PATH=${installed}")

# Programs name the files of their assertions.
file(GLOB_RECURSE files "${installed}/include/*" "${installed}/share/*" "${installed}/lib/*")
foreach(file IN LISTS files)
  file(READ "${file}" text)
  foreach(path IN ITEMS "${ZERO_SOURCE}" "${SCRATCH}")
    string(FIND "${text}" "${path}" position)
    if(NOT position EQUAL -1)
      message(FATAL_ERROR "${file} contains the path ${path}")
    endif()
  endforeach()
endforeach()

string(REGEX MATCH "^[0-9]+\\.[0-9]+" this_minor "${ZERO_VERSION}")
expect_configured(build "-DZERO_REQUEST=${this_minor}")
build_and_run_consumer(build)
expect_refused(newer "requested version \"1000.0\"" "-DZERO_REQUEST=1000.0")

expect_configured(optional "-DZERO_REQUEST=OPTIONAL_COMPONENTS no_such_component")
expect_refused(unknown "has no component 'no_such_component'"
               "-DZERO_REQUEST=COMPONENTS no_such_component")

# A component is found with its package, which only those look for who ask.
expect_configured(without_mpi "-DZERO_REQUEST=")
if(text MATCHES "MPI")
  message(FATAL_ERROR "zero looked for MPI without being asked:\n${text}")
endif()
set(components mpi checkpoint bench libtorch)
set(packages MPI xxHash benchmark LibTorch)
foreach(component package IN ZIP_LISTS components packages)
  set(request "-DZERO_REQUEST=COMPONENTS ${component}")
  string(TOUPPER "HAS_${component}" has)
  if(${has})
    expect_configured(${component} "${request}")
    build(${component} --target consumer_${component})
  endif()
  expect_refused(no_${component} "zero's component '${component}' needs ${package}" "${request}"
                 -DCMAKE_DISABLE_FIND_PACKAGE_${package}=ON)
endforeach()
if(HAS_CHECKPOINT)
  run("${SCRATCH}/checkpoint/consumer_checkpoint" "^loaded step 1\n$")
endif()
if(HAS_BENCH)
  run("${SCRATCH}/bench/consumer_bench" "" --benchmark_filter=bytes:1024/ --benchmark_repetitions=1)
endif()
if(HAS_LIBTORCH)
  run("${SCRATCH}/libtorch/consumer_libtorch" "")
endif()

# What a system cannot have is said when it is asked for, not by a compiler later.
file(WRITE "${SCRATCH}/windows.cmake"
     "set(CMAKE_SYSTEM_NAME Windows)\nset(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY)\n")
foreach(component IN ITEMS mpi checkpoint libtorch)
  expect_refused(
    ${component}_on_windows "zero's component '${component}' does not support Windows"
    "-DZERO_REQUEST=COMPONENTS ${component}" "-DCMAKE_TOOLCHAIN_FILE=${SCRATCH}/windows.cmake")
endforeach()
