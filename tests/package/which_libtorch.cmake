# Of several LibTorches the one that the user names is taken, and named with its version. They are
# empty files in the places of real ones.
cmake_minimum_required(VERSION 3.25)

file(REMOVE_RECURSE "${SCRATCH}")

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

file(WRITE "${SCRATCH}/project/CMakeLists.txt"
     "cmake_minimum_required(VERSION 3.25)\nproject(which LANGUAGES NONE)\n"
     "list(APPEND CMAKE_MODULE_PATH \"${ZERO_SOURCE}/cmake\")\n"
     "find_package(LibTorch \${REQUEST})\n"
     "get_target_property(include LibTorch::LibTorch INTERFACE_INCLUDE_DIRECTORIES)\n"
     "message(STATUS \"linked: \${include}\")\n")

# What is installed in the system is what a prefix of the system would have.
make_torch("${SCRATCH}/system" 1.13)
make_torch("${SCRATCH}/pypi/torch" 2.15)
make_torch("${SCRATCH}/own build" 2.10)

function(expect name version prefix)
  execute_process(
    COMMAND
      "${CMAKE_COMMAND}" -E env --unset=CMAKE_PREFIX_PATH --unset=Torch_DIR ${ENVIRONMENT}
      "${CMAKE_COMMAND}" -S "${SCRATCH}/project" -B "${SCRATCH}/${name}" -G "${GENERATOR}"
      "-DCMAKE_MAKE_PROGRAM=${MAKE_PROGRAM}" "-DCMAKE_SYSTEM_PREFIX_PATH=${SCRATCH}/system" ${ARGN}
    RESULT_VARIABLE result
    OUTPUT_VARIABLE text
    ERROR_VARIABLE text)
  string(FIND "${text}" "zero: LibTorch ${version}.0 of ${prefix}/lib/libtorch_cpu.so" said)
  string(FIND "${text}" "linked: ${prefix}/include" linked)
  if(NOT result EQUAL 0
     OR said EQUAL -1
     OR linked EQUAL -1)
    message(FATAL_ERROR "${name}: not LibTorch ${version} of ${prefix}:\n${text}")
  endif()
endfunction()

expect(nothing_named 1.13 "${SCRATCH}/system")
expect(as_torch_says 2.15 "${SCRATCH}/pypi/torch"
       "-DCMAKE_PREFIX_PATH=${SCRATCH}/elsewhere\\;${SCRATCH}/pypi/torch/share/cmake")
expect(a_build 2.10 "${SCRATCH}/own build" "-DCMAKE_PREFIX_PATH=${SCRATCH}/own build")
expect(torch_dir 2.15 "${SCRATCH}/pypi/torch"
       "-DTorch_DIR=${SCRATCH}/pypi/torch/share/cmake/Torch")
# In the order in which CMake looks for a package.
expect(both 2.15 "${SCRATCH}/pypi/torch" "-DTorch_DIR=${SCRATCH}/pypi/torch/share/cmake/Torch/"
       "-DCMAKE_PREFIX_PATH=${SCRATCH}/own build")
if(NOT CMAKE_HOST_WIN32)
  set(ENVIRONMENT "CMAKE_PREFIX_PATH=${SCRATCH}/elsewhere:${SCRATCH}/pypi/torch/share/cmake")
  expect(environment 2.15 "${SCRATCH}/pypi/torch")
  set(ENVIRONMENT "")
endif()

# One that is named and not there is not replaced by another.
file(REMOVE "${SCRATCH}/own build/lib/libc10.so")
execute_process(
  COMMAND
    "${CMAKE_COMMAND}" -S "${SCRATCH}/project" -B "${SCRATCH}/incomplete" -G "${GENERATOR}"
    "-DCMAKE_MAKE_PROGRAM=${MAKE_PROGRAM}" "-DCMAKE_SYSTEM_PREFIX_PATH=${SCRATCH}/system"
    "-DCMAKE_PREFIX_PATH=${SCRATCH}/own build" -DREQUEST=REQUIRED
  RESULT_VARIABLE result
  OUTPUT_VARIABLE text
  ERROR_VARIABLE text)
if(result EQUAL 0 OR NOT text MATCHES "LIBTORCH_C10_LIBRARY")
  message(FATAL_ERROR "an incomplete LibTorch was completed from elsewhere:\n${text}")
endif()
