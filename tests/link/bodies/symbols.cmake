# A unit that takes bodies from elsewhere asks for those of its own flags: none of other flags fit,
# and the linker names them.
execute_process(
  COMMAND "${NM}" --demangle --undefined-only "${UNIT}"
  OUTPUT_VARIABLE text COMMAND_ERROR_IS_FATAL ANY)
foreach(function IN ITEMS "detail::Engine::step[(]" "InProcess::wait[(]" "detail::plan_of[(]")
  if(NOT text MATCHES "zero::v[0-9_]+[^:\n]*_fma[^:\n]*::[^\n]*(${function})")
    message(FATAL_ERROR "no ${function} with flags in its name among:\n${text}")
  endif()
endforeach()
