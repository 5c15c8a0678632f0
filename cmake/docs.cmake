find_program(ZERO_DOXYGEN doxygen)
if(NOT ZERO_DOXYGEN)
  message(FATAL_ERROR "zero: doxygen was not found; it is the Debian package doxygen. "
                      "Install it, or set ZERO_BUILD_DOCS to OFF.")
endif()

file(RELATIVE_PATH zero_from_reference "${PROJECT_BINARY_DIR}/docs/html" "${PROJECT_SOURCE_DIR}")
string(REGEX REPLACE "/$" "" zero_from_reference "${zero_from_reference}")
configure_file(cmake/Doxyfile.in "${PROJECT_BINARY_DIR}/Doxyfile" @ONLY)
add_custom_target(
  docs
  COMMAND "${ZERO_DOXYGEN}" "${PROJECT_BINARY_DIR}/Doxyfile"
  WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}"
  COMMENT "API reference in ${PROJECT_BINARY_DIR}/docs/html"
  VERBATIM)
