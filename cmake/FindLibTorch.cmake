# Finds LibTorch for the host: Debian's libtorch-dev, a build whose prefix is in CMAKE_PREFIX_PATH, or
# else the package of PyPI that the first python3 would import. Torch's own CMake package is not asked:
# it looks for libraries that only a build of Torch needs, and Debian's puts flags on whoever links it.
find_library(LIBTORCH_CPU_LIBRARY NAMES torch_cpu)
set(zero_torch "")
if(NOT LIBTORCH_CPU_LIBRARY)
  find_program(LIBTORCH_PYTHON NAMES python3)
  mark_as_advanced(LIBTORCH_PYTHON)
  if(LIBTORCH_PYTHON)
    execute_process(
      COMMAND "${LIBTORCH_PYTHON}" -c "from importlib.util import find_spec
print(find_spec('torch').submodule_search_locations[0])"
      OUTPUT_VARIABLE zero_torch
      OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  endif()
  find_library(LIBTORCH_CPU_LIBRARY NAMES torch_cpu HINTS "${zero_torch}/lib")
endif()
find_library(LIBTORCH_C10_LIBRARY NAMES c10 HINTS "${zero_torch}/lib")
find_path(LIBTORCH_INCLUDE_DIR NAMES ATen/ATen.h HINTS "${zero_torch}/include")
find_path(LIBTORCH_API_INCLUDE_DIR NAMES torch/torch.h
          HINTS "${LIBTORCH_INCLUDE_DIR}/torch/csrc/api/include"
          PATH_SUFFIXES torch/csrc/api/include)
mark_as_advanced(LIBTORCH_INCLUDE_DIR LIBTORCH_API_INCLUDE_DIR LIBTORCH_CPU_LIBRARY
                 LIBTORCH_C10_LIBRARY)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(
  LibTorch REQUIRED_VARS LIBTORCH_CPU_LIBRARY LIBTORCH_C10_LIBRARY LIBTORCH_INCLUDE_DIR
                         LIBTORCH_API_INCLUDE_DIR)

if(LibTorch_FOUND AND NOT TARGET LibTorch::LibTorch)
  # Global, because it is linked where a trainer's code is, which may be in a directory above.
  add_library(LibTorch::LibTorch INTERFACE IMPORTED GLOBAL)
  set_target_properties(
    LibTorch::LibTorch
    PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "${LIBTORCH_INCLUDE_DIR};${LIBTORCH_API_INCLUDE_DIR}"
               INTERFACE_LINK_LIBRARIES "${LIBTORCH_CPU_LIBRARY};${LIBTORCH_C10_LIBRARY}")
endif()
