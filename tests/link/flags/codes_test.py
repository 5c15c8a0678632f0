"""The code in names has a bit of its own for each flag, in the order in which the flags are listed, so
that different flags never have equal names. The preprocessor is asked about each flag alone and about
random sets of them, as if they were this processor's.

usage: codes_test.py COMPILER INCLUDE
"""

import pathlib
import random
import re
import subprocess
import sys
import unittest

COMPILER, INCLUDE = sys.argv[1:3]
HEADER = pathlib.Path(INCLUDE, "zero/base/flags.hpp").read_text(encoding="utf-8")
MACHINES = {"x86_64": ["__x86_64__"], "aarch64": ["__aarch64__"]}
# Defined where nothing is special; a flag is that they are not.
USUAL = {"__EXCEPTIONS", "__GXX_RTTI", "__SSE2_MATH__"}
LONGEST = 24


def macros(machine):
    """All macros that the header asks on this machine, each with its value, but which machine it is."""
    lists = HEADER[HEADER.index("#define ZERO_FLAGS_PROCESSOR"):HEADER.index("/// The inline namespace of what is")]
    arm, other = lists.split("#else\n")
    other, common = other.split("#endif\n")
    found = set(re.findall(r"\b__\w+", (arm if machine == "aarch64" else other) + common)) - {"__x86_64__"}
    return sorted({(name, 1) for name in found} | {(name, level) for name in found if "RCPC" in name for level in (2, 3)})


def names_of(machine, sets):
    """Of each set of macros: the code or '', and the flags, as names of symbols have them."""
    every = {name for name, _ in macros(machine)}
    own = {"__x86_64__", "__aarch64__", "__arm__"}
    # The standard library is asked first, on the machine that it is for.
    head = "#include <cstddef>\n" + "".join(f"#undef {name}\n" for name in sorted(own | every))
    head += "".join(f"#define {name} 1\n" for name in MACHINES[machine])
    # What follows the include is expanded with the macros of its place.
    text = head + '#include "zero/base/flags.hpp"\n'
    for chosen in sets:
        text += "".join(f"#define {name} {value}\n" for name, value in chosen)
        text += ("ask ZERO_FLAGS(ZERO_JOIN, ZERO_FLAGS_DIGIT) with ZERO_FLAGS(ZERO_JOIN, ZERO_FLAGS_NAME) "
                 "text ZERO_FLAGS_AS_TEXT\n")
        text += "".join(f"#undef {name}\n" for name, _ in chosen)
    done = subprocess.run([COMPILER, "-std=c++20", "-w", "-I", INCLUDE, "-E", "-P", "-x", "c++", "-"],
                          input=text, capture_output=True, text=True, check=True)
    answers = re.findall(r'^ask (\w+) with (\w*) *text (.*)$', done.stdout, re.MULTILINE)
    return [(code, words, "".join(re.findall(r'"([^"]*)"', quoted))) for code, words, quoted in answers]


class Codes(unittest.TestCase):
    def test_each_flag_has_a_bit(self):
        for machine in MACHINES:
            every = macros(machine)
            usual = [(name, 1) for name, _ in every if name in USUAL]
            alone = [[one] for one in every if one[0] not in USUAL]
            sets = [usual] + [usual + one for one in alone]
            sets += [[other for other in usual if other != one] for one in usual]
            answers = names_of(machine, sets)
            self.assertEqual(len(answers), len(sets))
            digits = len(answers[0][0])
            self.assertEqual(answers[0], ("0" * digits, "", ""), machine)
            # Names without a code are of this one, and of no other.
            self.assertIn(f"#define ZERO_CODE_{'0' * digits} 1\n", HEADER)
            self.assertLessEqual(len("v0_3_") + digits, LONGEST)
            flag_of = {}
            for code, words, text in answers[1:]:
                self.assertEqual(len(code), digits)
                self.assertEqual(int(code, 16).bit_count(), 1, f"{machine}: {words} is {code}")
                self.assertEqual(words, "_" + text.strip())
                self.assertNotIn(int(code, 16), flag_of, words)
                flag_of[int(code, 16)] = text.strip()
            self.assertEqual(len(set(flag_of.values())), len(flag_of))
            self.check_sets(machine, every, flag_of)

    def check_sets(self, machine, every, flag_of):
        """Codes of random sets, from few flags to nearly all, are those of what is listed, in order."""
        choose = random.Random(48)
        sets = [list(dict(one for one in every if choose.random() < share / 40).items()) for share in range(41)]
        for code, words, text in names_of(machine, sets):
            bits = [1 << bit for bit in reversed(range(4 * len(code))) if int(code, 16) >> bit & 1]
            listed = [flag_of[bit] for bit in bits]
            self.assertEqual(text.split(), listed, machine)
            self.assertEqual(words, "".join("_" + flag for flag in listed))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
