# A unit that takes bodies from elsewhere, or constructs no communicator, compiles none that calls MPI.
execute_process(
  COMMAND "${NM}" --undefined-only "${UNIT}"
  OUTPUT_VARIABLE text COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCHALL "P?MPI_[A-Z][a-z_]+" calls "${text}")
if(calls OR NOT text MATCHES "uncaught_exceptions")
  message(FATAL_ERROR "MPI is called, or that is not such a unit: ${calls} in\n${text}")
endif()
