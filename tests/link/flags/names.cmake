# What the names of a unit say of its flags: as words, and in at most 24 letters. Needs COMPILER,
# INCLUDE and SCRATCH.
cmake_minimum_required(VERSION 3.25)

file(WRITE "${SCRATCH}/name.cpp"
     "#include <zero/base/config.hpp>\n"
     "name ZERO_SHARED_NAMESPACE ZERO_NAMESPACE ZERO_IMPLEMENTATION_NAME\n")

# Under the flags that follow, the shared name ends with SHARED, and the words are FLAGS.
function(expect shared flags)
  execute_process(
    COMMAND "${COMPILER}" -std=c++20 -I "${INCLUDE}" ${ARGN} -E -P "${SCRATCH}/name.cpp"
    OUTPUT_VARIABLE text COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX MATCH "name v[0-9][^\n]*" text "${text}")
  if(flags STREQUAL "_default_flags")
    set(code "")
  else()
    set(code "_[0-9a-f]+")
  endif()
  set(version "v[0-9]+_[0-9]+(_other_std)?${shared}")
  if(NOT text MATCHES "^name (${version}) ((${version})${code}) implementation_with${flags}$")
    message(SEND_ERROR "${ARGN}: not '${shared}' and '${flags}' in '${text}'")
  endif()
  string(REGEX REPLACE "_other_std|_debug_containers" "" own "${CMAKE_MATCH_3}")
  string(LENGTH "${own}" length)
  if(length GREATER 24)
    message(SEND_ERROR "${ARGN}: '${own}' has ${length} letters")
  endif()
endfunction()

expect("" "_default_flags")
expect("" "_default_flags" -O2 -DNDEBUG -D_GLIBCXX_ASSERTIONS -fopenmp -fsanitize=address -fwrapv -fPIC)
expect("" "_no_exceptions" -fno-exceptions)
expect("" "_no_rtti" -fno-rtti)
expect("" "_no_exceptions_no_rtti" -fno-exceptions -fno-rtti)
expect("" "_finite" -ffinite-math-only)
expect("" "_fast_math_finite[a-z_]*_no_errno" -ffast-math)
expect("_debug_containers" "_no_rtti" -fno-rtti -D_GLIBCXX_DEBUG)

execute_process(COMMAND "${COMPILER}" --version OUTPUT_VARIABLE version)
if(NOT version MATCHES "clang")
  # Clang shows no macro for these.
  expect("" "_associative_no_signed_zeros_no_traps" -fassociative-math -fno-signed-zeros
         -fno-trapping-math)
  expect("" "_reciprocal" -freciprocal-math)
  expect("" "_rounding" -frounding-math)
  expect("" "_signaling_nans" -fsignaling-nans)
endif()

execute_process(COMMAND "${COMPILER}" -dumpmachine OUTPUT_VARIABLE machine)
if(machine MATCHES "x86_64")
  expect("" "_no_errno" -fno-math-errno)
  if(NOT version MATCHES "clang")
    expect("" "_avx[a-z0-9_]*_x87" -mavx -mfpmath=387)
  endif()
  expect("" "_sse3" -msse3)
  expect("" "_sse4_2_popcnt(_crc32)?" -march=x86-64-v2)
  expect("" "_avx2_fma_f16c_bmi_bmi2_lzcnt_popcnt_movbe(_crc32)?" -march=x86-64-v3)
  set(v4 "_avx512f_avx512bw_avx512cd_avx512dq_avx512vl")
  expect("" "${v4}_fma_f16c_bmi_bmi2_lzcnt_popcnt_movbe(_crc32)?" -march=x86-64-v4)
  expect("" "_avx2_fma(_popcnt)?(_crc32)?" -mavx2 -mfma)
elseif(machine MATCHES "aarch64")
  expect("" "_sve_[a-z0-9_]+" -march=armv8.2-a+sve)
endif()
