# Flags for zero's own tests, benchmarks and examples. They are never on zero::zero: the warnings
# and sanitizers of a trainer are the trainer's choice.
add_library(zero_dev_options INTERFACE)

target_compile_options(
  zero_dev_options
  INTERFACE -Wall
            -Wextra
            -Wconversion
            -Wsign-conversion
            -Wshadow
            -Wpedantic
            -Wnon-virtual-dtor
            -Wold-style-cast)
if(ZERO_WERROR)
  target_compile_options(zero_dev_options INTERFACE -Werror)
endif()

if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # GCC 12 reports an overlap inside std::string's own operator+ (gcc PR 105651).
  target_compile_options(zero_dev_options INTERFACE -Wno-restrict)
endif()

if(ZERO_SANITIZE)
  set(zero_sanitizer_flags -fsanitize=${ZERO_SANITIZE} -fno-sanitize-recover=all)
  target_compile_options(zero_dev_options INTERFACE ${zero_sanitizer_flags}
                                                    -fno-omit-frame-pointer)
  if(ZERO_SANITIZE MATCHES "address" AND ZERO_SANITIZE MATCHES "undefined")
    # The address sanitizer finds these itself, without checks at every access.
    target_compile_options(zero_dev_options INTERFACE -fno-sanitize=null,object-size)
  endif()
  if(ZERO_SANITIZE MATCHES "address" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # Checks of accesses as calls: a fifth less to compile.
    target_compile_options(zero_dev_options
                           INTERFACE "SHELL:--param asan-instrumentation-with-call-threshold=0")
  endif()
  if(CMAKE_CXX_COMPILER_ID MATCHES "Clang" AND ZERO_SANITIZE MATCHES "address|thread")
    # GCC and newer Clang define this themselves, and tests ask for it.
    set(sanitizer "${CMAKE_MATCH_0}")
    string(TOUPPER "${sanitizer}" sanitizer)
    target_compile_definitions(zero_dev_options INTERFACE __SANITIZE_${sanitizer}__=1)
  endif()
  target_link_options(zero_dev_options INTERFACE ${zero_sanitizer_flags})
endif()

# Ours in C, and in C++17: the same bits as in C++20, where a compiler may fuse multiply-adds.
add_library(zero_c_options INTERFACE)
target_compile_options(zero_c_options INTERFACE -Wall -Wextra -Wpedantic -ffp-contract=off
                                                ${zero_sanitizer_flags})
if(ZERO_WERROR)
  target_compile_options(zero_c_options INTERFACE -Werror)
endif()
target_link_options(zero_c_options INTERFACE ${zero_sanitizer_flags})
