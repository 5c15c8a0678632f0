# Finds LibTorch for the host: Debian's libtorch-dev, or a build whose prefix is in
# CMAKE_PREFIX_PATH. Torch's own package is not asked: it looks for libraries that only a build of
# Torch needs, and Debian's puts flags on whoever links it.
find_path(LIBTORCH_INCLUDE_DIR NAMES ATen/ATen.h)
find_path(LIBTORCH_API_INCLUDE_DIR NAMES torch/torch.h
          HINTS "${LIBTORCH_INCLUDE_DIR}/torch/csrc/api/include"
          PATH_SUFFIXES torch/csrc/api/include)
find_library(LIBTORCH_LIBRARY NAMES torch)
find_library(LIBTORCH_CPU_LIBRARY NAMES torch_cpu)
find_library(LIBTORCH_C10_LIBRARY NAMES c10)
mark_as_advanced(LIBTORCH_INCLUDE_DIR LIBTORCH_API_INCLUDE_DIR LIBTORCH_LIBRARY
                 LIBTORCH_CPU_LIBRARY LIBTORCH_C10_LIBRARY)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(
  LibTorch REQUIRED_VARS LIBTORCH_LIBRARY LIBTORCH_CPU_LIBRARY LIBTORCH_C10_LIBRARY
                         LIBTORCH_INCLUDE_DIR LIBTORCH_API_INCLUDE_DIR)

if(LibTorch_FOUND AND NOT TARGET LibTorch::LibTorch)
  # Global, because it is linked where a trainer's code is, which may be in a directory above.
  add_library(LibTorch::LibTorch INTERFACE IMPORTED GLOBAL)
  set_target_properties(
    LibTorch::LibTorch
    PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "${LIBTORCH_INCLUDE_DIR};${LIBTORCH_API_INCLUDE_DIR}"
               INTERFACE_LINK_LIBRARIES
               "${LIBTORCH_LIBRARY};${LIBTORCH_CPU_LIBRARY};${LIBTORCH_C10_LIBRARY}")
endif()
