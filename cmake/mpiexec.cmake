# What mpiexec has to be told. Open MPI counts processors and refuses to start more processes, and
# does not run as root unless told so twice; MPICH minds neither.
set(zero_mpiexec_flags "")
set(zero_mpiexec_recovery "")
execute_process(COMMAND "${MPIEXEC_EXECUTABLE}" --version OUTPUT_VARIABLE launcher ERROR_QUIET)
if(launcher MATCHES "Open MPI|OpenRTE")
  set(zero_mpiexec_flags --oversubscribe)
  set(zero_mpiexec_recovery --enable-recovery)
endif()
set(zero_mpi_environment OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1)
