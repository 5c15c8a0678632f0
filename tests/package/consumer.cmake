# What the package tests share: configuring a project, and building and running its programs. Every
# test begins with an empty ${SCRATCH}.
cmake_minimum_required(VERSION 3.25)
file(REMOVE_RECURSE "${SCRATCH}")

# The project that is configured, with options in every case, in this environment.
set(project "${CMAKE_CURRENT_LIST_DIR}/consumer")
set(options "-DCMAKE_CXX_COMPILER=${COMPILER}")
set(environment "")
# What zero itself is built with where no program's speed is asked for: half of the compiler's time.
set(quickly -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_FLAGS_RELEASE=-O0)
# All that its program prints, as an expression.
string(REPLACE "." "[.]" version_line "^zero ${ZERO_VERSION}\n$")
# What its program for checkpoints prints where it is compiled with HEADERS_ALONE: XXH3 of "zero", as
# Python's xxhash has it.
set(checksum_line "^checksum 88a12c17a20f41d7\n$")

# Leaves the exit status in ${result} and everything printed in ${text}.
macro(configure name)
  execute_process(
    COMMAND
      "${CMAKE_COMMAND}" -E env ${environment} "${CMAKE_COMMAND}" -S "${project}" -B
      "${SCRATCH}/${name}" -G "${GENERATOR}" "-DCMAKE_MAKE_PROGRAM=${MAKE_PROGRAM}" ${options} ${ARGN}
    RESULT_VARIABLE result
    OUTPUT_VARIABLE text
    ERROR_VARIABLE text)
  # CMake wraps its messages.
  string(REGEX REPLACE "[ \n]+" " " text "${text}")
endmacro()

# It must be configured, in ${SCRATCH}/${name}; leaves everything printed in ${text}.
function(expect_configured name)
  configure(${name} ${ARGN})
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "${name} was not configured:\n${text}")
  endif()
  set(text
      "${text}"
      PARENT_SCOPE)
endfunction()

# It must not, for a reason that is said in these words.
function(expect_refused name words)
  configure(${name} ${ARGN})
  if(result EQUAL 0 OR NOT text MATCHES "${words}")
    message(FATAL_ERROR "${name}: not refused by '${words}':\n${text}")
  endif()
endfunction()

function(build name)
  execute_process(COMMAND "${CMAKE_COMMAND}" --build "${SCRATCH}/${name}" ${ARGN}
                          COMMAND_ERROR_IS_FATAL ANY)
endfunction()

# Runs a program, with arguments, where it lies.
function(run program expected)
  cmake_path(GET program PARENT_PATH directory)
  execute_process(
    COMMAND "${program}" ${ARGN}
    WORKING_DIRECTORY "${directory}"
    OUTPUT_VARIABLE text
    COMMAND_ERROR_IS_FATAL ANY)
  if(NOT text MATCHES "${expected}")
    message(FATAL_ERROR "${program} printed '${text}' instead of '${expected}'")
  endif()
endfunction()

function(build_and_run_consumer name)
  build(${name})
  run("${SCRATCH}/${name}/consumer" "${version_line}")
endfunction()

# Installs to one place and moves it to ${installed}: a package that remembers a path fails there.
set(installed "${SCRATCH}/moved")
function(install_and_move binary)
  execute_process(COMMAND "${CMAKE_COMMAND}" --install "${binary}" --prefix "${SCRATCH}/staged"
                          COMMAND_ERROR_IS_FATAL ANY OUTPUT_QUIET)
  file(RENAME "${SCRATCH}/staged" "${installed}")
endfunction()
