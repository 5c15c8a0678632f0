/// @file
/// The only header that asks which compiler it is compiled by. Nothing here changes a layout.
#pragma once

/// A file that does not exist. Compilers go on behind an error directive, but not without a file.
#define ZERO_STOP <zero stops here>

#if __cplusplus <= 201703L && !(defined(_MSVC_LANG) && _MSVC_LANG > 201703L)
#error "zero: needs C++20; compile with -std=c++20"
#include ZERO_STOP
#endif

#include <version>

// What older libraries lack; which version of a library it is, only libraries say.
#if !defined(__cpp_lib_bit_cast) || !defined(__cpp_lib_span)
#error "zero: needs a standard library with all of C++20, such as that of GCC 12 or Clang 14"
#include ZERO_STOP
#endif

#include "zero/base/flags.hpp"

/// Marks functions whose source serves the host and, under nvcc, the device.
#if defined(__CUDACC__)
#define ZERO_HOST_DEVICE __host__ __device__
#else
#define ZERO_HOST_DEVICE
#endif

/// Before a loop: device code has its body so many times. Compilers for the host decide themselves.
#if defined(__CUDA_ARCH__)
#define ZERO_PRAGMA(text) _Pragma(#text)
#define ZERO_UNROLL(times) ZERO_PRAGMA(unroll times)
#else
#define ZERO_UNROLL(times)
#endif

/// Code that runs once or never is compiled for size: it costs its users' compiler less.
#if defined(__GNUC__)
#define ZERO_COLD __attribute__((cold, noinline))
#else
#define ZERO_COLD
#endif

/// Inlining decides whether a kernel's body vectorises; here the decision is not the compiler's.
#if defined(__GNUC__)
#define ZERO_ALWAYS_INLINE inline __attribute__((always_inline))
#else
#define ZERO_ALWAYS_INLINE inline
#endif

/// Before a variable that nothing reads and that is in the object all the same.
#if defined(__GNUC__)
#define ZERO_KEPT __attribute__((used))
#else
#define ZERO_KEPT [[maybe_unused]]
#endif

/// Whether zero::compiled was built with this translation unit's flags, whose name it defines as 1.
#if ZERO_IF(ZERO_JOIN(ZERO_COMPILED_, ZERO_NAMESPACE, , , , , , ), 1, 0) && !defined(__CUDACC__)
#define ZERO_TAKES_COMPILED 1
#else
#define ZERO_TAKES_COMPILED 0
#endif

/// @def ZERO_BODIES
/// Bodies that depend on no policy stand apart from their declarations, where this is 1. Where they
/// are compiled is said once a unit, before the library is included. By nothing: in the unit, those
/// that are called, as templates without parameters to choose. By `ZERO_DECLARATIONS`: elsewhere,
/// as ordinary functions, and base/unit_flags.hpp has the linker ask for them whatever is called.
/// By `ZERO_IMPLEMENTATION`, whatever else is said: in this unit, all that it includes; two such
/// units of equal flags end in duplicate symbols. Units that take zero::compiled are like those
/// with `ZERO_DECLARATIONS`.
/// @def ZERO_OPTIONAL_BODIES
/// The same of optional parts, of which zero::compiled has nothing.
/// @def ZERO_SHARES_BODIES
/// Does the unit share bodies with others?
/// @def ZERO_APART
/// Before a declaration whose body stands apart.
/// @def ZERO_BODY
/// Before such a body.
/// @def ZERO_OPTIONAL_APART
/// As `ZERO_APART`, of an optional part.
/// @def ZERO_OPTIONAL_BODY
/// As `ZERO_BODY`, of an optional part.
#if defined(ZERO_IMPLEMENTATION)
#define ZERO_BODIES 1
#define ZERO_OPTIONAL_BODIES 1
#elif defined(ZERO_DECLARATIONS)
#define ZERO_BODIES 0
#define ZERO_OPTIONAL_BODIES 0
#elif ZERO_TAKES_COMPILED
#define ZERO_BODIES 0
#define ZERO_OPTIONAL_BODIES 1
#else
#define ZERO_BODIES 1
#define ZERO_OPTIONAL_BODIES 1
#endif

#if defined(ZERO_IMPLEMENTATION) || defined(ZERO_DECLARATIONS) || ZERO_TAKES_COMPILED
#define ZERO_SHARES_BODIES 1
#define ZERO_APART
#define ZERO_BODY
#else
#define ZERO_SHARES_BODIES 0
#define ZERO_APART template <class = void>
#define ZERO_BODY template <class>
#endif

#if defined(ZERO_IMPLEMENTATION) || defined(ZERO_DECLARATIONS)
#define ZERO_OPTIONAL_APART
#define ZERO_OPTIONAL_BODY
#else
#define ZERO_OPTIONAL_APART template <class = void>
#define ZERO_OPTIONAL_BODY template <class>
#endif
