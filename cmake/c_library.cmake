# libzero_c: zero/c.h with all shipped stages, accumulations and memories, and the precisions and rules
# of c_library.cpp, for trainers whose compilers know no C++20. Where MPI is, there is one more beside
# it, with zero/c_mpi.h, named after the MPI library: libzero_c_openmpi, libzero_c_mpich. Where
# checkpoints are, both have zero/c_checkpoint.h. Nothing but these interfaces is visible. The SONAME has
# the minor version, too: before 1.0 it may break its users.
#
# zero_add_c_library(<name> LINK <target>... DEFINES <macro>...)
function(zero_add_c_library name)
  cmake_parse_arguments(c "" "" "LINK;DEFINES" ${ARGN})
  add_library(${name} SHARED cmake/c_library.cpp)
  set_target_properties(
    ${name}
    PROPERTIES VERSION ${PROJECT_VERSION}
               SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR}
               EXCLUDE_FROM_ALL $<NOT:$<BOOL:${ZERO_C_LIBRARY}>>)
  target_link_libraries(${name} PRIVATE zero::zero ${c_LINK})
  target_compile_definitions(${name} PRIVATE ${c_DEFINES})
  target_include_directories(
    ${name} INTERFACE $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
                      $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  if(CMAKE_SYSTEM_NAME STREQUAL "Linux")
    # What the standard library has in headers would be visible as well.
    target_link_options(${name} PRIVATE
                        "-Wl,--version-script=${PROJECT_SOURCE_DIR}/cmake/c_library.map")
    set_target_properties(${name} PROPERTIES LINK_DEPENDS
                                             "${PROJECT_SOURCE_DIR}/cmake/c_library.map")
  endif()
  if(ZERO_INSTALL AND ZERO_C_LIBRARY)
    install(TARGETS ${name} LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}")
    string(REPLACE "_" "-" pc_name "${name}")
    zero_add_pkg_config(
      ${pc_name}
      DESCRIPTION "zero for trainers in C, compiled with all shipped policies"
      DIRECTORY "${CMAKE_INSTALL_LIBDIR}"
      CFLAGS "-I\${includedir}"
      LIBS "-L\${libdir}" "-l${name}")
  endif()
endfunction()

set(zero_c_link "")
set(zero_c_defines "")
if(zero_has_checkpoint)
  list(APPEND zero_c_link zero::checkpoint)
  list(APPEND zero_c_defines ZERO_C_LIBRARY_CHECKPOINT)
endif()
zero_add_c_library(zero_c LINK ${zero_c_link} DEFINES ${zero_c_defines})
if(zero_has_mpi)
  # Programs of one MPI library cannot run with the other's: both may be installed.
  if(launcher MATCHES "Open MPI|OpenRTE")
    set(zero_c_mpi zero_c_openmpi)
  elseif(launcher MATCHES "HYDRA")
    set(zero_c_mpi zero_c_mpich)
  else()
    set(zero_c_mpi zero_c_mpi)
  endif()
  zero_add_c_library(${zero_c_mpi} LINK ${zero_c_link} zero::mpi DEFINES ${zero_c_defines}
                     ZERO_C_LIBRARY_MPI)
endif()
