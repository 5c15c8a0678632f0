# Finds LibTorch for the host. What the user names wins, as its own CMake package is named: Torch_DIR,
# or an entry of CMAKE_PREFIX_PATH that is torch.utils.cmake_prefix_path or a build's prefix. Otherwise
# it is what is installed in the system, such as Debian's libtorch-dev, or else the package of PyPI that
# the first python3 would import. Torch's own CMake package is not asked: it looks for libraries that
# only a build of Torch needs, and Debian's puts flags on whoever links it.
set(zero_torch_named "")
set(zero_torch_prefixes "$ENV{CMAKE_PREFIX_PATH}")
if(NOT CMAKE_HOST_WIN32)
  string(REPLACE ":" ";" zero_torch_prefixes "${zero_torch_prefixes}")
endif()
foreach(zero_torch_dir IN ITEMS "${Torch_DIR}" "$ENV{Torch_DIR}")
  if(zero_torch_dir AND NOT zero_torch_named)
    # Where TorchConfig.cmake is: <prefix>/share/cmake/Torch, or Debian's /usr/lib/<arch>/cmake/Torch.
    cmake_path(ABSOLUTE_PATH zero_torch_dir NORMALIZE)
    string(REGEX REPLACE "/((share|lib|lib64)(/[^/]+)?/)?cmake/Torch/?$" "" zero_torch_named
                         "${zero_torch_dir}")
  endif()
endforeach()
foreach(zero_torch_dir IN LISTS CMAKE_PREFIX_PATH zero_torch_prefixes)
  foreach(zero_torch_prefix IN ITEMS "${zero_torch_dir}" "${zero_torch_dir}/../..")
    if(NOT zero_torch_named AND EXISTS "${zero_torch_prefix}/include/ATen/ATen.h")
      cmake_path(ABSOLUTE_PATH zero_torch_prefix NORMALIZE OUTPUT_VARIABLE zero_torch_named)
    endif()
  endforeach()
endforeach()

set(zero_torch_where "")
if(zero_torch_named)
  # And nowhere else: another one beside it must not be taken silently.
  set(zero_torch_where PATHS "${zero_torch_named}" NO_DEFAULT_PATH)
endif()
find_library(LIBTORCH_CPU_LIBRARY NAMES torch_cpu ${zero_torch_where}
             PATH_SUFFIXES lib "lib/${CMAKE_LIBRARY_ARCHITECTURE}")
if(NOT LIBTORCH_CPU_LIBRARY AND NOT zero_torch_named)
  find_program(LIBTORCH_PYTHON NAMES python3)
  mark_as_advanced(LIBTORCH_PYTHON)
  if(LIBTORCH_PYTHON)
    execute_process(
      COMMAND "${LIBTORCH_PYTHON}" -c "from importlib.util import find_spec
print(find_spec('torch').submodule_search_locations[0])"
      OUTPUT_VARIABLE zero_torch
      OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    if(zero_torch)
      set(zero_torch_where PATHS "${zero_torch}" NO_DEFAULT_PATH)
    endif()
  endif()
  find_library(LIBTORCH_CPU_LIBRARY NAMES torch_cpu ${zero_torch_where} PATH_SUFFIXES lib)
endif()
find_library(LIBTORCH_C10_LIBRARY NAMES c10 ${zero_torch_where}
             PATH_SUFFIXES lib "lib/${CMAKE_LIBRARY_ARCHITECTURE}")
find_path(LIBTORCH_INCLUDE_DIR NAMES ATen/ATen.h ${zero_torch_where} PATH_SUFFIXES include)
find_path(LIBTORCH_API_INCLUDE_DIR NAMES torch/torch.h
          PATHS "${LIBTORCH_INCLUDE_DIR}/torch/csrc/api/include" NO_DEFAULT_PATH)
mark_as_advanced(LIBTORCH_INCLUDE_DIR LIBTORCH_API_INCLUDE_DIR LIBTORCH_CPU_LIBRARY
                 LIBTORCH_C10_LIBRARY)

set(LibTorch_VERSION "")
foreach(zero_torch_header IN ITEMS "${LIBTORCH_API_INCLUDE_DIR}/torch/version.h"
                                   "${LIBTORCH_INCLUDE_DIR}/torch/headeronly/version.h")
  if(LibTorch_VERSION STREQUAL "" AND EXISTS "${zero_torch_header}")
    file(STRINGS "${zero_torch_header}" LibTorch_VERSION
         REGEX "^#define TORCH_VERSION_(MAJOR|MINOR|PATCH) +[0-9]+")
    list(TRANSFORM LibTorch_VERSION REPLACE ".* " "")
    list(JOIN LibTorch_VERSION "." LibTorch_VERSION)
  endif()
endforeach()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(
  LibTorch REQUIRED_VARS LIBTORCH_CPU_LIBRARY LIBTORCH_C10_LIBRARY LIBTORCH_INCLUDE_DIR
                         LIBTORCH_API_INCLUDE_DIR
  VERSION_VAR LibTorch_VERSION)

if(LibTorch_FOUND)
  message(STATUS "zero: LibTorch ${LibTorch_VERSION} of ${LIBTORCH_CPU_LIBRARY}")
endif()
if(LibTorch_FOUND AND NOT TARGET LibTorch::LibTorch)
  # Global, because it is linked where a trainer's code is, which may be in a directory above.
  add_library(LibTorch::LibTorch INTERFACE IMPORTED GLOBAL)
  set_target_properties(
    LibTorch::LibTorch
    PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "${LIBTORCH_INCLUDE_DIR};${LIBTORCH_API_INCLUDE_DIR}"
               INTERFACE_LINK_LIBRARIES "${LIBTORCH_CPU_LIBRARY};${LIBTORCH_C10_LIBRARY}")
endif()
