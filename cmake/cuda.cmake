# nvcc for the CUDA tests and benchmarks, and the flags of their device code.
include(CheckLanguage)
check_language(CUDA)
if(NOT CMAKE_CUDA_COMPILER)
  message(FATAL_ERROR "zero: ZERO_BUILD_CUDA needs nvcc in the PATH, or CMAKE_CUDA_COMPILER")
endif()
if(NOT zero_has_cuda)
  message(FATAL_ERROR "zero: ZERO_BUILD_CUDA needs ZERO_WITH_CUDA")
endif()
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 80 90)
endif()
enable_language(CUDA)
if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 12.9)
  message(FATAL_ERROR "zero: nvcc is of CUDA ${CMAKE_CUDA_COMPILER_VERSION}; device code takes 12.9")
endif()

# zero_dev_options are the host compiler's. Of those, -Wpedantic and -Wold-style-cast complain about
# what nvcc makes of the sources; the same code meets them where the host compiler reads it itself.
add_library(zero_cuda_options INTERFACE)
target_compile_options(
  zero_cuda_options
  INTERFACE
    # Not as a feature: CMake 3.25 does not know those of nvcc 13.
    "$<$<COMPILE_LANGUAGE:CUDA>:-std=c++20>"
    "$<$<COMPILE_LANGUAGE:CUDA>:--threads=1>"
    "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra,-Wconversion,-Wsign-conversion,-Wshadow>"
    "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wnon-virtual-dtor,-Wno-restrict>")
if(ZERO_WERROR)
  target_compile_options(zero_cuda_options
                         INTERFACE "$<$<COMPILE_LANGUAGE:CUDA>:--Werror=all-warnings>")
endif()
target_link_libraries(zero_cuda_options INTERFACE zero::cuda)
