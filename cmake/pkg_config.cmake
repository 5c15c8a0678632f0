# For Makefiles: `pkg-config --cflags --libs zero`, or zero-<component>. A file finds the headers
# relative to itself, like the CMake package. The language standard is the trainer's to choose.
#
# zero_add_pkg_config(<name> DESCRIPTION <text> [DIRECTORY <where, default: share>]
#                     [REQUIRES <package>...] [CFLAGS <flag>...] [LIBS <flag>...])
function(zero_add_pkg_config pc_name)
  cmake_parse_arguments(pc "" "DESCRIPTION;DIRECTORY" "REQUIRES;CFLAGS;LIBS" ${ARGN})
  if(NOT pc_DIRECTORY)
    set(pc_DIRECTORY "${CMAKE_INSTALL_DATADIR}")
  endif()
  file(RELATIVE_PATH pc_prefix "/prefix/${pc_DIRECTORY}/pkgconfig" "/prefix")
  set(pc_description "${pc_DESCRIPTION}")
  list(JOIN pc_REQUIRES " " pc_requires)
  list(JOIN pc_CFLAGS " " pc_cflags)
  list(JOIN pc_LIBS " " pc_libs)
  configure_file("${PROJECT_SOURCE_DIR}/cmake/zero.pc.in" "${PROJECT_BINARY_DIR}/${pc_name}.pc" @ONLY)
  install(FILES "${PROJECT_BINARY_DIR}/${pc_name}.pc" DESTINATION "${pc_DIRECTORY}/pkgconfig")
endfunction()
