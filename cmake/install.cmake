include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

# Headers have no architecture, so the package lies in share, not in lib.
set(zero_package_dir "${CMAKE_INSTALL_DATADIR}/cmake/zero")

install(
  TARGETS zero
  EXPORT zeroTargets
  FILE_SET HEADERS DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
install(
  EXPORT zeroTargets
  NAMESPACE zero::
  DESTINATION "${zero_package_dir}")

configure_package_config_file(cmake/zeroConfig.cmake.in "${PROJECT_BINARY_DIR}/zeroConfig.cmake"
                              INSTALL_DESTINATION "${zero_package_dir}"
                              NO_CHECK_REQUIRED_COMPONENTS_MACRO)
# Before 1.0 a minor version may break its users.
write_basic_package_version_file(
  "${PROJECT_BINARY_DIR}/zeroConfigVersion.cmake"
  COMPATIBILITY SameMinorVersion
  ARCH_INDEPENDENT)
install(FILES "${PROJECT_BINARY_DIR}/zeroConfig.cmake"
              "${PROJECT_BINARY_DIR}/zeroConfigVersion.cmake"
        DESTINATION "${zero_package_dir}")

include("${CMAKE_CURRENT_LIST_DIR}/pkg_config.cmake")
zero_add_pkg_config(
  zero
  DESCRIPTION "${PROJECT_DESCRIPTION}"
  CFLAGS "-I\${includedir}" -pthread
  LIBS -pthread)
