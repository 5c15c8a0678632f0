# Optional backends. A component is one INTERFACE target, zero::<name>, over zero::zero and one
# package, installed in an export set of its own: a trainer that does not ask for it never looks for
# the package. The headers are always installed; they include nothing unless they are included.
#
# zero_add_component(<name> PACKAGE <package> [PACKAGE_COMPONENTS <component>...] LINK <target>...
#                    [NEEDS <zero component>...] [MODULE <find module, relative to the source>]
#                    [NOT_ON <system>...] [PC_REQUIRES <pkg-config package>...] [PC_LIBS <flag>...])
#
# Where CMAKE_SYSTEM_NAME is one of NOT_ON, its headers do not compile, and asking for it is an error.
# The package must say <package>_FOUND. ZERO_WITH_<NAME> is AUTO (look for it if tests are built),
# ON (it must be there) or OFF; afterwards zero_has_<name> says whether it is there.

macro(zero_add_component name)
  cmake_parse_arguments(component "" "PACKAGE;MODULE"
                        "PACKAGE_COMPONENTS;LINK;NEEDS;NOT_ON;PC_REQUIRES;PC_LIBS" ${ARGN})
  string(TOUPPER "${name}" component_option)
  set(component_option "ZERO_WITH_${component_option}")
  set(${component_option}
      "AUTO"
      CACHE STRING "Use ${component_PACKAGE} for zero::${name}: AUTO, ON or OFF")
  set_property(CACHE ${component_option} PROPERTY STRINGS AUTO ON OFF)

  set(component_find_arguments ${component_PACKAGE})
  if(component_PACKAGE_COMPONENTS)
    list(APPEND component_find_arguments COMPONENTS ${component_PACKAGE_COMPONENTS})
  endif()
  list(JOIN component_find_arguments " " component_find_text)

  set(zero_has_${name} FALSE)
  set(component_missing "no ${component_PACKAGE}")
  if(CMAKE_SYSTEM_NAME IN_LIST component_NOT_ON)
    set(component_missing "zero::${name} does not support ${CMAKE_SYSTEM_NAME}")
    if("${${component_option}}" STREQUAL "AUTO")
      set(${component_option} OFF)
    elseif(${component_option})
      message(FATAL_ERROR "zero: ${component_missing}: set ${component_option} to OFF")
    endif()
  endif()
  if(NOT "${${component_option}}" STREQUAL "AUTO" OR ZERO_BUILD_TESTS)
    if(${component_option})
      if(component_MODULE)
        cmake_path(GET component_MODULE PARENT_PATH component_module_dir)
        list(APPEND CMAKE_MODULE_PATH "${PROJECT_SOURCE_DIR}/${component_module_dir}")
      endif()
      # The target is linked where a trainer's code is, which may be in a directory above.
      set(CMAKE_FIND_PACKAGE_TARGETS_GLOBAL TRUE)
      if("${${component_option}}" STREQUAL "AUTO")
        find_package(${component_find_arguments} QUIET)
      else()
        find_package(${component_find_arguments} REQUIRED)
      endif()
      unset(CMAKE_FIND_PACKAGE_TARGETS_GLOBAL)
      set(zero_has_${name} ${${component_PACKAGE}_FOUND})
      foreach(component_need IN LISTS component_NEEDS)
        if(NOT zero_has_${component_need})
          set(zero_has_${name} FALSE)
        endif()
      endforeach()
      if(component_MODULE)
        list(POP_BACK CMAKE_MODULE_PATH)
      endif()
    endif()
  endif()
  if(NOT zero_has_${name} AND "$CACHE{${component_option}}" STREQUAL "AUTO" AND PROJECT_IS_TOP_LEVEL)
    message(STATUS "zero: ${component_missing}, so nothing that needs zero::${name} is built")
  endif()

  add_library(zero_${name} INTERFACE)
  add_library(zero::${name} ALIAS zero_${name})
  set_target_properties(zero_${name} PROPERTIES EXPORT_NAME ${name})
  target_link_libraries(zero_${name} INTERFACE zero::zero ${component_LINK})
  foreach(component_need IN LISTS component_NEEDS)
    target_link_libraries(zero_${name} INTERFACE zero::${component_need})
  endforeach()

  if(ZERO_INSTALL)
    install(TARGETS zero_${name} EXPORT zero_${name}Targets)
    install(
      EXPORT zero_${name}Targets
      NAMESPACE zero::
      FILE zero_${name}Targets.cmake
      DESTINATION "${zero_package_dir}")
    set(component_name ${name})
    string(REPLACE ";" " " component_needs_text "${component_NEEDS}")
    list(JOIN component_NOT_ON "|" component_not_on_text)
    configure_file("${PROJECT_SOURCE_DIR}/cmake/zeroComponent.cmake.in"
                   "${PROJECT_BINARY_DIR}/zero_${name}.cmake" @ONLY)
    install(FILES "${PROJECT_BINARY_DIR}/zero_${name}.cmake" DESTINATION "${zero_package_dir}")
    list(TRANSFORM component_NEEDS PREPEND "zero-")
    zero_add_pkg_config(
      zero-${name}
      DESCRIPTION
      "zero with ${component_PACKAGE}"
      REQUIRES
      zero
      ${component_NEEDS}
      ${component_PC_REQUIRES}
      LIBS
      ${component_PC_LIBS})
    if(component_MODULE)
      install(FILES "${PROJECT_SOURCE_DIR}/${component_MODULE}" DESTINATION "${zero_package_dir}")
    endif()
  endif()
endmacro()
