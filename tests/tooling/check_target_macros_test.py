"""A macro that a flag of the processor defines has to be in names of flags, or known to change no code."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "cmake" / "check_target_macros.py"
HEADER = (ROOT / "include/zero/base/flags.hpp").read_text(encoding="utf-8")

# Lists its flags as GCC does: 20 that define what is known, and what a test gives it.
COMPILER = r"""
list=$1
shift
for i in 0 1 2 3 4 5 6 7 8 9; do list="$list,-mknown$i=__AES__,-mknown$i$i=__SHA__"; done
IFS=,
case ",$*," in
*,-Q,*)
  for each in $list; do echo "  ${each%%=*}    [disabled]"; done ;;
*,-dM,*)
  echo "#define __x86_64__ 1"
  for each in $list; do
    case ",$*," in *",${each%%=*},"*) echo "#define ${each#*=} 1" ;; esac
  done ;;
*)
  exit 1 ;;
esac
"""


def check(flags, header=HEADER):
    """The script's answer about a compiler with such flags, each with its macro."""
    with tempfile.TemporaryDirectory() as folder:
        compiler = pathlib.Path(folder, "compiler.sh")
        compiler.write_text(COMPILER, encoding="utf-8")
        known = pathlib.Path(folder, "flags.hpp")
        known.write_text(header, encoding="utf-8")
        done = subprocess.run([sys.executable, SCRIPT, "--flags", known, "sh", compiler, flags],
                              capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr


class TargetMacros(unittest.TestCase):
    def test_known_macros(self):
        self.assertEqual(check("-mapxf=__APX_F__,-mavx2=__AVX2__"), (0, "22 flags, 0 unknown macros\n"))

    def test_a_macro_of_tomorrow(self):
        status, text = check("-mnew=__NEW__,-mnewer=__NEW__")
        self.assertEqual(status, 1)
        self.assertIn("__NEW__: defined by -mnew, -mnewer;", text)

    def test_a_macro_that_was_taken_from_the_list(self):
        for macro in ("__APX_F__", "__CMPCCXADD__", "__ARM_FEATURE_RCPC", "__ARM_FEATURE_CSSC",
                      "__ARM_FEATURE_LSE128"):
            self.assertEqual(check(f"-mflag={macro}")[0], 0, macro)
            status, text = check(f"-mflag={macro}", HEADER.replace(macro, "__OTHER__"))
            self.assertEqual(status, 1, macro)
            self.assertIn(f"{macro}: defined by -mflag;", text)

    def test_a_compiler_that_lists_nothing(self):
        done = subprocess.run([sys.executable, SCRIPT, "true"], capture_output=True, text=True, check=False)
        self.assertNotEqual(done.returncode, 0)


if __name__ == "__main__":
    unittest.main()
