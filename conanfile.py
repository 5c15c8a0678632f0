"""For trainers that use Conan 2: `conan create .`, then `zero/[>=0.1]` among their requirements."""

import os
import re

from conan import ConanFile
from conan.tools.files import copy, load


class Zero(ConanFile):
    name = "zero"
    description = "ZeRO optimizer sharding for trainers written in C++"
    package_type = "header-library"
    exports_sources = "include/*"
    no_copy_source = True

    def set_version(self):
        text = load(self, os.path.join(self.recipe_folder, "include/zero/base/version.hpp"))
        self.version = ".".join(re.findall(r"#define ZERO_VERSION_\w+ (\d+)", text))

    def package(self):
        copy(self, "include/*", src=self.source_folder, dst=self.package_folder)

    def package_id(self):
        self.info.clear()  # headers are the same for every compiler

    def package_info(self):
        self.cpp_info.set_property("cmake_target_name", "zero::zero")
        self.cpp_info.bindirs = []
        self.cpp_info.libdirs = []
        if self.settings.get_safe("os") != "Windows":
            self.cpp_info.system_libs = ["pthread"]
