# Finds xxHash, whose header is all that is used of it, and which Debian installs without a package
# of CMake's. Checkpoints have JSON beside it: xxHash_FOUND says that both are there.
find_package(nlohmann_json QUIET)

find_path(XXHASH_INCLUDE_DIR NAMES xxhash.h)
mark_as_advanced(XXHASH_INCLUDE_DIR)

if(XXHASH_INCLUDE_DIR)
  file(STRINGS "${XXHASH_INCLUDE_DIR}/xxhash.h" xxhash_lines
       REGEX "^#define XXH_VERSION_(MAJOR|MINOR|RELEASE) +[0-9]+")
  set(xxHash_VERSION "")
  foreach(xxhash_part IN ITEMS MAJOR MINOR RELEASE)
    if(xxhash_lines MATCHES "XXH_VERSION_${xxhash_part} +([0-9]+)")
      list(APPEND xxHash_VERSION "${CMAKE_MATCH_1}")
    endif()
  endforeach()
  list(JOIN xxHash_VERSION "." xxHash_VERSION)
  unset(xxhash_lines)
endif()

include(FindPackageHandleStandardArgs)
# XXH3 has its final form since 0.8.0.
find_package_handle_standard_args(
  xxHash
  REQUIRED_VARS XXHASH_INCLUDE_DIR nlohmann_json_FOUND
  VERSION_VAR xxHash_VERSION)

if(xxHash_FOUND AND NOT TARGET xxHash::xxHash)
  # Global, because it is linked where a trainer's code is, which may be in a directory above.
  add_library(xxHash::xxHash INTERFACE IMPORTED GLOBAL)
  set_target_properties(xxHash::xxHash PROPERTIES INTERFACE_INCLUDE_DIRECTORIES
                                                  "${XXHASH_INCLUDE_DIR}")
endif()
