# Tests, examples and benchmarks use installed packages and download nothing, so that a configure
# without a network succeeds and every dependency has one version: the distribution's.
macro(zero_require name debian_package)
  find_package(${name} QUIET)
  if(NOT ${name}_FOUND)
    message(
      FATAL_ERROR
        "zero: ${name} was not found; it is the Debian package ${debian_package}. "
        "Run 'sh cmake/install-deps.sh', or set ZERO_BUILD_TESTS, ZERO_BUILD_EXAMPLES and "
        "ZERO_BUILD_BENCH to OFF: the library itself needs none of it.")
  endif()
endmacro()
