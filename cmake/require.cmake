# Tests, examples, benchmarks and programs use installed packages and download nothing, so that a
# configure without a network succeeds and every dependency has one version: the system's.
#
# zero_require(<package> <Debian's name> <argument of install-deps.sh that brings it> <what needs it>)
#
# Where the package is missing, what needs it is left out with a line: the calling file ends. Under
# ZERO_REQUIRE_PACKAGES, which presets set, that is an error instead.
macro(zero_require package debian argument what)
  find_package(${package} QUIET)
  if(NOT ${package}_FOUND)
    if(ZERO_REQUIRE_PACKAGES)
      message(FATAL_ERROR "zero: ${what}: no ${package}, which is the Debian package ${debian}. "
                          "'sh cmake/install-deps.sh ${argument}' installs it.")
    endif()
    message(STATUS "zero: no ${package} (Debian: ${debian}), so these are left out: ${what}")
    return()
  endif()
endmacro()
