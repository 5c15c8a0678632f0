# A trainer whose packages come from Conan 2, in a home of its own and without a network.
include("${CMAKE_CURRENT_LIST_DIR}/consumer.cmake")

file(COPY "${project}" "${CMAKE_CURRENT_LIST_DIR}/conan_consumer" DESTINATION "${SCRATCH}")
set(ENV{CONAN_HOME} "${SCRATCH}/home")
set(ENV{CXX} "${COMPILER}")
set(conan "${PYTHON}" -m conans.conan)
execute_process(COMMAND ${conan} profile detect COMMAND_ERROR_IS_FATAL ANY OUTPUT_QUIET ERROR_QUIET)

function(create_zero expected)
  execute_process(
    COMMAND ${conan} create "${ZERO_SOURCE}" --test-folder "${SCRATCH}/conan_consumer" --no-remote -s
            build_type=Debug ${ARGN}
    RESULT_VARIABLE result
    OUTPUT_VARIABLE text
    ERROR_VARIABLE text)
  if(NOT result EQUAL 0 OR NOT text MATCHES "${expected}")
    message(FATAL_ERROR "${text}")
  endif()
endfunction()
create_zero("zero/${ZERO_VERSION} .*\nzero ${ZERO_VERSION}\n")

# With a component. What it requires are stand-ins for the packages of Conan Center: the system has the
# headers, and each names a library that is there.
foreach(package IN ITEMS "xxhash 0.8.1 xxhash" "nlohmann_json 3.11.2 m")
  string(REPLACE " " ";" package "${package}")
  list(GET package 0 name)
  list(GET package 1 version)
  list(SUBLIST package 2 -1 libraries)
  file(
    WRITE "${SCRATCH}/${name}/conanfile.py"
    "from conan import ConanFile\n\n\nclass Package(ConanFile):\n    name = \"${name}\"\n"
    "    version = \"${version}\"\n\n    def package_info(self):\n"
    "        self.cpp_info.includedirs = []\n        self.cpp_info.system_libs = \"${libraries}\".split()\n")
  execute_process(COMMAND ${conan} create "${SCRATCH}/${name}" --no-remote COMMAND_ERROR_IS_FATAL ANY
                          OUTPUT_QUIET ERROR_QUIET)
endforeach()
if(HAS_CHECKPOINT)
  create_zero("\nchecksum 88a12c17a20f41d7\n" -o "zero/*:checkpoint=True")
endif()
