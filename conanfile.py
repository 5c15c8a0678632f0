"""For trainers that use Conan 2: `conan create .`, then `zero/[>=0.3]` among their requirements.

Options mpi, checkpoint and bench add the components of those names and require their packages:
`conan create . -o "zero/*:checkpoint=True"`.
"""

import os
import re

from conan import ConanFile
from conan.tools.files import copy, load

# Of each component: its packages, and their targets.
COMPONENTS = {
    "mpi": (["openmpi/[>=4.1]"], ["openmpi::openmpi"]),
    "checkpoint": (["xxhash/[>=0.8]", "nlohmann_json/[>=3.11]"],
                   ["xxhash::xxhash", "nlohmann_json::nlohmann_json"]),
    "bench": (["benchmark/[>=1.7]"], ["benchmark::benchmark"]),
}


class Zero(ConanFile):
    name = "zero"
    description = "ZeRO optimizer sharding for trainers written in C++"
    license = "Apache-2.0"
    package_type = "header-library"
    exports_sources = "include/*", "LICENSE"
    no_copy_source = True
    options = {name: [True, False] for name in COMPONENTS}
    default_options = {name: False for name in COMPONENTS}

    def set_version(self):
        text = load(self, os.path.join(self.recipe_folder, "include/zero/base/version.hpp"))
        self.version = ".".join(re.findall(r"#define ZERO_VERSION_\w+ (\d+)", text))

    def chosen(self):
        return [name for name in COMPONENTS if self.options.get_safe(name)]

    def requirements(self):
        for name in self.chosen():
            for package in COMPONENTS[name][0]:
                self.requires(package, transitive_headers=True, transitive_libs=True)

    def package(self):
        copy(self, "include/*", src=self.source_folder, dst=self.package_folder)
        copy(self, "LICENSE", src=self.source_folder,
             dst=os.path.join(self.package_folder, "licenses"))

    def package_id(self):
        self.info.clear()  # headers are the same for every compiler

    def package_info(self):
        # The package's own target would otherwise be called as its first component's.
        self.cpp_info.set_property("cmake_target_name", "zero::all")
        core = self.cpp_info.components["core"]
        core.set_property("cmake_target_name", "zero::zero")
        core.bindirs = []
        core.libdirs = []
        if self.settings.get_safe("os") != "Windows":
            core.system_libs = ["pthread"]
        for name in self.chosen():
            component = self.cpp_info.components[name]
            component.set_property("cmake_target_name", f"zero::{name}")
            component.requires = ["core", *COMPONENTS[name][1]]
            component.bindirs = []
            component.libdirs = []
            component.includedirs = []
