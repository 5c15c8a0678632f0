# Optional backends. A component is one INTERFACE target, zero::<name>, over zero::zero and one
# package, installed in an export set of its own: a trainer that does not ask for it never looks for
# the package. The headers are always installed; they include nothing unless they are included.
#
# zero_add_component(<name> PACKAGE <package> [PACKAGE_COMPONENTS <component>...] LINK <target>...
#                    [NEEDS <zero component>...] [MODULE <find module, relative to the source>]
#                    [NOT_ON <system>...] [PC_REQUIRES <pkg-config package>...] [PC_LIBS <flag>...]
#                    CALLED <where> <name>...)
#
# Where CMAKE_SYSTEM_NAME is one of NOT_ON, its headers do not compile, and asking for it is an error.
# The package must say <package>_FOUND. CALLED are its names elsewhere, for who has to install it.
#
# A component is asked for by its name in ZERO_COMPONENTS, or by ZERO_WITH_<NAME>=ON: then the package
# has to be there. OFF: it is not looked for. AUTO: it is used where it is, if tests, benchmarks or
# programs are built that use it. Afterwards zero_has_<name> says whether it is there. A project that
# links a component which it has not asked for is told what to write.

set(ZERO_COMPONENTS
    ""
    CACHE STRING "Components that have to be there, such as mpi;checkpoint")

macro(zero_add_component name)
  cmake_parse_arguments(component "" "PACKAGE;MODULE"
                        "PACKAGE_COMPONENTS;LINK;NEEDS;NOT_ON;PC_REQUIRES;PC_LIBS;CALLED" ${ARGN})
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

  set(component_wanted "${${component_option}}")
  if("${name}" IN_LIST ZERO_COMPONENTS)
    set(component_wanted ON)
  endif()
  list(APPEND zero_known_components ${name})

  set(zero_has_${name} FALSE)
  set(component_missing "no ${component_PACKAGE}")
  if(CMAKE_SYSTEM_NAME IN_LIST component_NOT_ON)
    set(component_missing "zero::${name} does not support ${CMAKE_SYSTEM_NAME}")
    if(component_wanted STREQUAL "AUTO")
      set(component_wanted OFF)
    elseif(component_wanted)
      message(FATAL_ERROR "zero: ${component_missing}: take '${name}' out of ZERO_COMPONENTS, and set "
                          "${component_option} to OFF")
    endif()
  endif()
  if(NOT component_wanted STREQUAL "AUTO"
     OR ZERO_BUILD_TESTS
     OR ZERO_BUILD_BENCH
     OR (ZERO_BUILD_PROGRAMS AND "${name}" STREQUAL "checkpoint"))
    if(component_wanted)
      if(component_MODULE)
        cmake_path(GET component_MODULE PARENT_PATH component_module_dir)
        list(APPEND CMAKE_MODULE_PATH "${PROJECT_SOURCE_DIR}/${component_module_dir}")
      endif()
      # The target is linked where a trainer's code is, which may be in a directory above.
      set(CMAKE_FIND_PACKAGE_TARGETS_GLOBAL TRUE)
      find_package(${component_find_arguments} QUIET)
      if(NOT component_wanted STREQUAL "AUTO" AND NOT ${component_PACKAGE}_FOUND)
        list(JOIN component_CALLED " " component_called)
        message(FATAL_ERROR "zero: zero::${name} needs ${component_PACKAGE}, which was not found. It is "
                            "called ${component_called}.")
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
    # Of what nobody asked for and nothing would use, nothing is said.
    if(NOT zero_has_${name} AND "$CACHE{${component_option}}" STREQUAL "AUTO" AND PROJECT_IS_TOP_LEVEL)
      message(STATUS "zero: ${component_missing}, so nothing that needs zero::${name} is built")
    endif()
  endif()

  add_library(zero_${name} INTERFACE)
  add_library(zero::${name} ALIAS zero_${name})
  set_target_properties(zero_${name} PROPERTIES EXPORT_NAME ${name})
  # A name with '::' that is no target ends the generation, and is printed.
  set(component_unasked
      "zero::${name} -- which is not asked for: write set(ZERO_COMPONENTS ${name}) before zero is added")
  if(zero_has_${name} OR PROJECT_IS_TOP_LEVEL)
    target_link_libraries(zero_${name} INTERFACE zero::zero ${component_LINK})
  else()
    target_link_libraries(zero_${name} INTERFACE zero::zero "$<BUILD_INTERFACE:${component_unasked}>"
                                                 "$<INSTALL_INTERFACE:${component_LINK}>")
  endif()
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
