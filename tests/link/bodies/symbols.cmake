# A unit that takes bodies from elsewhere asks for those of its own flags: none of other flags fit. It
# has the linker name these flags as words, too.
execute_process(
  COMMAND "${NM}" --demangle --undefined-only "${UNIT}"
  OUTPUT_VARIABLE text COMMAND_ERROR_IS_FATAL ANY)
foreach(function IN ITEMS "detail::Engine::step[(]" "InProcess::wait[(]" "detail::plan_of[(]")
  if(NOT text MATCHES "zero::v[0-9]+_[0-9]+[a-z_]*_[0-9a-f]+::[^\n]*(${function})")
    message(FATAL_ERROR "no ${function} with flags in its name among:\n${text}")
  endif()
endforeach()
if(NOT text MATCHES "zero::v[0-9]+_[0-9]+[a-z_]*::implementation_with_[a-z0-9_]*_fma")
  message(FATAL_ERROR "no word for a flag among:\n${text}")
endif()
