# zero::compiled: zero::zero and a static library of its usual instantiations. Translation units with
# the library's flags take them from there, others make their own: the name of the flags tells.
function(zero_name_flags out)
  string(TOUPPER "CMAKE_CXX_FLAGS_${CMAKE_BUILD_TYPE}" flags)
  separate_arguments(flags NATIVE_COMMAND "${CMAKE_CXX_FLAGS} ${${flags}}")
  set(source "${PROJECT_BINARY_DIR}/flags.cpp")
  file(CONFIGURE OUTPUT "${source}" CONTENT "#include <zero/base/config.hpp>\nZERO_NAMESPACE\n")
  execute_process(
    COMMAND "${CMAKE_CXX_COMPILER}" -std=c++20 ${flags} -I "${PROJECT_SOURCE_DIR}/include" -E -P
            "${source}"
    OUTPUT_VARIABLE text COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX MATCH "[a-z0-9_]+[ \t\r\n]*$" name "${text}")
  string(STRIP "${name}" name)
  set(${out}
      "${name}"
      PARENT_SCOPE)
endfunction()

zero_name_flags(zero_flags_name)
add_library(zero_compiled STATIC cmake/compiled.cpp)
add_library(zero::compiled ALIAS zero_compiled)
set_target_properties(zero_compiled PROPERTIES EXPORT_NAME compiled POSITION_INDEPENDENT_CODE ON
                                               EXCLUDE_FROM_ALL $<NOT:$<BOOL:${ZERO_COMPILED}>>)
target_link_libraries(zero_compiled PUBLIC zero::zero)
target_compile_definitions(zero_compiled PUBLIC ZERO_COMPILED_${zero_flags_name}=1)

if(ZERO_INSTALL AND ZERO_COMPILED)
  install(TARGETS zero_compiled EXPORT zero_compiledTargets ARCHIVE DESTINATION
                                                                    "${CMAKE_INSTALL_LIBDIR}")
  install(
    EXPORT zero_compiledTargets
    NAMESPACE zero::
    DESTINATION "${zero_package_dir}")
  file(CONFIGURE OUTPUT "${PROJECT_BINARY_DIR}/zero_compiled.cmake" CONTENT
       "include(\"\${CMAKE_CURRENT_LIST_DIR}/zero_compiledTargets.cmake\")
set(zero_compiled_FOUND TRUE)
" ESCAPE_QUOTES @ONLY)
  install(FILES "${PROJECT_BINARY_DIR}/zero_compiled.cmake" DESTINATION "${zero_package_dir}")
  zero_add_pkg_config(
    zero-compiled
    DESCRIPTION "zero with a library of its usual instantiations"
    DIRECTORY "${CMAKE_INSTALL_LIBDIR}"
    REQUIRES zero
    CFLAGS "-DZERO_COMPILED_${zero_flags_name}=1"
    LIBS "-L\${libdir}" -lzero_compiled)
endif()
