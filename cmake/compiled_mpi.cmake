# zero::compiled_mpi: zero::compiled, zero::mpi and a static library of what is behind a communicator
# over MPI. It is made for the MPI library that was found.
add_library(zero_compiled_mpi STATIC EXCLUDE_FROM_ALL cmake/compiled_mpi.cpp)
add_library(zero::compiled_mpi ALIAS zero_compiled_mpi)
set_target_properties(zero_compiled_mpi PROPERTIES EXPORT_NAME compiled_mpi
                                                   POSITION_INDEPENDENT_CODE ON)
target_link_libraries(zero_compiled_mpi PUBLIC zero_compiled zero::mpi)
target_compile_definitions(zero_compiled_mpi PUBLIC ZERO_COMPILED_MPI_${zero_flags_name}=1)

if(ZERO_INSTALL AND ZERO_COMPILED)
  set_target_properties(zero_compiled_mpi PROPERTIES EXCLUDE_FROM_ALL OFF)
  install(TARGETS zero_compiled_mpi EXPORT zero_compiled_mpiTargets
          ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}")
  install(
    EXPORT zero_compiled_mpiTargets
    NAMESPACE zero::
    DESTINATION "${zero_package_dir}")
  file(CONFIGURE OUTPUT "${PROJECT_BINARY_DIR}/zero_compiled_mpi.cmake" CONTENT
       "zero_find_component(compiled)
zero_find_component(mpi)
if(zero_compiled_FOUND AND zero_mpi_FOUND)
  include(\"\${CMAKE_CURRENT_LIST_DIR}/zero_compiled_mpiTargets.cmake\")
  set(zero_compiled_mpi_FOUND TRUE)
endif()
" ESCAPE_QUOTES @ONLY)
  install(FILES "${PROJECT_BINARY_DIR}/zero_compiled_mpi.cmake" DESTINATION "${zero_package_dir}")
endif()
