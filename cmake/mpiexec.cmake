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
# MPICH 4.2 over UCX ends MPI_Finalize in an assertion where an operation was never completed, and MPI
# has no call that cancels one; not if messages are copied.
set(zero_mpi_unfinished "")
if(launcher MATCHES "HYDRA.*Version: +([0-9.]+)" AND CMAKE_MATCH_1 VERSION_GREATER_EQUAL 4.2)
  set(zero_mpi_unfinished UCX_RNDV_THRESH=inf)
endif()
