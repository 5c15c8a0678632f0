# A unit that takes bodies from elsewhere, or constructs no communicator, compiles none that calls MPI.
execute_process(
  COMMAND "${NM}" --undefined-only "${UNIT}"
  OUTPUT_VARIABLE text COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCHALL "P?MPI_[A-Z][a-z_]+" calls "${text}")
# What a trainer calls itself.
list(REMOVE_ITEM calls MPI_Init_thread MPI_Finalize)
if(calls OR NOT text MATCHES "uncaught_exceptions")
  message(FATAL_ERROR "MPI is called, or that is not such a unit: ${calls} in\n${text}")
endif()
