# Finds NCCL: header, library and version. Defines NCCL::NCCL, which brings the CUDA runtime along,
# because nccl.h includes its header. NCCL_ROOT, or a prefix in CMAKE_PREFIX_PATH, says where to
# look first; the CUDA toolkit's own directories are looked at last.
find_package(CUDAToolkit QUIET)

find_path(
  NCCL_INCLUDE_DIR
  NAMES nccl.h
  HINTS ${CUDAToolkit_INCLUDE_DIRS})
find_library(
  NCCL_LIBRARY
  NAMES nccl
  HINTS ${CUDAToolkit_LIBRARY_DIR} ${CUDAToolkit_LIBRARY_ROOT}
  PATH_SUFFIXES lib lib64)
mark_as_advanced(NCCL_INCLUDE_DIR NCCL_LIBRARY)

if(NCCL_INCLUDE_DIR)
  file(STRINGS "${NCCL_INCLUDE_DIR}/nccl.h" nccl_lines
       REGEX "^#define NCCL_(MAJOR|MINOR|PATCH) +[0-9]+")
  set(NCCL_VERSION "")
  foreach(nccl_part IN ITEMS MAJOR MINOR PATCH)
    if(nccl_lines MATCHES "NCCL_${nccl_part} +([0-9]+)")
      list(APPEND NCCL_VERSION "${CMAKE_MATCH_1}")
    endif()
  endforeach()
  list(JOIN NCCL_VERSION "." NCCL_VERSION)
  unset(nccl_lines)
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(
  NCCL
  REQUIRED_VARS NCCL_LIBRARY NCCL_INCLUDE_DIR CUDAToolkit_FOUND
  VERSION_VAR NCCL_VERSION)

if(NCCL_FOUND AND NOT TARGET NCCL::NCCL)
  # Global, because it is linked where a trainer's code is, which may be in a directory above.
  add_library(NCCL::NCCL UNKNOWN IMPORTED GLOBAL)
  set_target_properties(
    NCCL::NCCL
    PROPERTIES IMPORTED_LOCATION "${NCCL_LIBRARY}"
               # System headers of an imported target: their warnings are not ours.
               INTERFACE_INCLUDE_DIRECTORIES "${NCCL_INCLUDE_DIR}"
               INTERFACE_LINK_LIBRARIES CUDA::cudart)
endif()
