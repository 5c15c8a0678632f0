# Of several LibTorches the one that the user names is taken, and named with its version. They are
# empty files in the places of real ones.
include("${CMAKE_CURRENT_LIST_DIR}/consumer.cmake")

set(project "${SCRATCH}/project")
set(environment --unset=CMAKE_PREFIX_PATH --unset=Torch_DIR)
# What is installed in the system is what a prefix of the system would have.
set(options "-DCMAKE_SYSTEM_PREFIX_PATH=${SCRATCH}/system")

# A LibTorch of this version as the package of PyPI and a build's prefix lay it out.
function(make_torch prefix version)
  string(REPLACE "." ";" parts "${version}")
  list(GET parts 0 major)
  list(GET parts 1 minor)
  file(WRITE "${prefix}/lib/libtorch_cpu.so" "")
  file(WRITE "${prefix}/lib/libc10.so" "")
  file(WRITE "${prefix}/share/cmake/Torch/TorchConfig.cmake" "message(FATAL_ERROR asked)")
  file(WRITE "${prefix}/include/ATen/ATen.h" "")
  set(api "${prefix}/include/torch/csrc/api/include/torch")
  file(WRITE "${api}/torch.h" "")
  file(WRITE "${api}/version.h"
       "#define TORCH_VERSION_MAJOR ${major}\n#define TORCH_VERSION_MINOR ${minor}\n"
       "#define TORCH_VERSION_PATCH 0\n")
endfunction()

file(WRITE "${project}/CMakeLists.txt"
     "cmake_minimum_required(VERSION 3.25)\nproject(which LANGUAGES NONE)\n"
     "list(APPEND CMAKE_MODULE_PATH \"${ZERO_SOURCE}/cmake\")\n"
     "find_package(LibTorch \${REQUEST})\n"
     "get_target_property(include LibTorch::LibTorch INTERFACE_INCLUDE_DIRECTORIES)\n"
     "message(STATUS \"linked: \${include}\")\n")

make_torch("${SCRATCH}/system" 1.13)
make_torch("${SCRATCH}/pypi/torch" 2.15)
make_torch("${SCRATCH}/own build" 2.10)

function(expect name version prefix)
  expect_configured(${name} ${ARGN})
  foreach(words IN ITEMS "zero: LibTorch ${version}.0 of ${prefix}/lib/libtorch_cpu.so"
                         "linked: ${prefix}/include")
    string(FIND "${text}" "${words}" position)
    if(position EQUAL -1)
      message(FATAL_ERROR "${name}: not LibTorch ${version} of ${prefix}:\n${text}")
    endif()
  endforeach()
endfunction()

expect(nothing_named 1.13 "${SCRATCH}/system")
# A list does not survive the way through functions.
list(APPEND options "-DCMAKE_PREFIX_PATH=${SCRATCH}/elsewhere\\;${SCRATCH}/pypi/torch/share/cmake")
expect(as_torch_says 2.15 "${SCRATCH}/pypi/torch")
list(POP_BACK options)
expect(a_build 2.10 "${SCRATCH}/own build" "-DCMAKE_PREFIX_PATH=${SCRATCH}/own build")
expect(torch_dir 2.15 "${SCRATCH}/pypi/torch"
       "-DTorch_DIR=${SCRATCH}/pypi/torch/share/cmake/Torch")
# In the order in which CMake looks for a package.
expect(both 2.15 "${SCRATCH}/pypi/torch" "-DTorch_DIR=${SCRATCH}/pypi/torch/share/cmake/Torch/"
       "-DCMAKE_PREFIX_PATH=${SCRATCH}/own build")
if(NOT CMAKE_HOST_WIN32)
  list(APPEND environment "CMAKE_PREFIX_PATH=${SCRATCH}/elsewhere:${SCRATCH}/pypi/torch/share/cmake")
  expect(environment 2.15 "${SCRATCH}/pypi/torch")
  list(POP_BACK environment)
endif()

# One that is named and not there is not replaced by another.
file(REMOVE "${SCRATCH}/own build/lib/libc10.so")
expect_refused(incomplete LIBTORCH_C10_LIBRARY "-DCMAKE_PREFIX_PATH=${SCRATCH}/own build"
               -DREQUEST=REQUIRED)
