#!/usr/bin/env python3
"""Asks a compiler which macros its flags for the processor define, and whether names show them.

Units that are compiled with different flags share no code as far as zero/base/flags.hpp knows the
macros. Prints each macro that is neither there nor below, with the flags that define it, and fails.
Usage: check_target_macros.py COMPILER [ARGUMENT...]
"""

import argparse
import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys

FLAGS = pathlib.Path(__file__).resolve().parent.parent / "include/zero/base/flags.hpp"

# Another machine or system, whose objects linkers refuse or ours does not compile for.
ELSEWHERE = {"-m16", "-m32", "-mx32", "-miamcu", "-mandroid", "-mbig-endian", "-mgeneral-regs-only",
             "-mkernel", "-municode", "-mbionic", "-mglibc", "-mmusl", "-muclibc"}

# Macros, as expressions, whose flags change no code that the compiler chooses, by the reason for it.
NO_CODE = {
    "instructions for intrinsics and system code alone": r"""
        __V?AES__ __VPCLMULQDQ__ __SHA(512)?__ __SM[34]__ __(WIDE)?KL__ __AMX\w+__ __AVX512VP2INTERSECT__
        __AVX512(ER|PF)__ __AVX5124\w+__ __LWP__ __3dNOW(_A)?__ __MMX__ __CLDEMOTE__ __CLFLUSHOPT__
        __CLWB__ __CLZERO__ __ENQCMD__ __FSGSBASE__ __FXSR__ __HRESET__ __HLE__ __INVPCID__ __MOVDIR64B__
        __MOVDIRI__ __MOVRS__ __MWAITX__ __PCONFIG__ __PKU__ __PTWRITE__ __RDPID__ __RDPRU__ __RDRND__
        __RDSEED__ __RTM__ __SERIALIZE__ __SGX__ __SHSTK__ __TSXLDTRK__ __UINTR__ __USER_?MSR__ __WAITPKG__
        __APX_INLINE_ASM_USE_GPR32__ __WBNOINVD__ __XSAVE\w*__ __PREFETCHWT1__ __PREFETCHI__
        __ARM_FEATURE_(CRYPTO|SHA2|SHA512|SM3|SM4|JCVT|RNG|TME|LS64\w*|MEMORY_TAGGING|SYSREG128|LUT)
        __ARM_FEATURE_(SVE2?_|SSVE_)(AES2?|BITPERM|SHA3|SM4|BF16|B16B16|BFSCALE|F16F32MM|MATMUL_\w+|FP8\w*)
        __ARM_FEATURE_(SME|SSVE|FP8|F8F)\w* __ARM_FEATURE_LOCALLY_STREAMING __ARM_FEATURE_BF16(_\w+)?
        __ARM_FEATURE_(PAUTH|PAC|BTI|GCS|PRED)\w* __ARM_FEATURE_SVE_(BITS|\w+_OPERATORS)
    """,
    "implied by another that names show": r"""
        __SSE__ __SSE2__ __SSE_MATH__ __ABM__ __AVX10_[12]_(256|512)__ __JMPABS__ __EVEX(256|512)__ __FP_FAST_FMA\w*
        __BIGGEST_ALIGNMENT__ __FLT16_\w+ __ARM_NEON\w* __ARM_FP\w* __ARM_ARCH(_\w+)? __AARCH64_\w+
        __ARM_FEATURE_(CLZ|FMA|IDIV|FP16_SCALAR_ARITHMETIC|NUMERIC_MAXMIN|DIRECTED_ROUNDING|UNALIGNED)
        __ARM_BF16_FORMAT_ALTERNATIVE
    """,
    "16-byte atomics, the x87 and prefetches for writing, which headers do not ask for": r"""
        __CX16__ __CX8__ __LAHF_SAHF__ __PRFCHW__ __GCC_HAVE_SYNC_COMPARE_AND_SWAP_\d+
    """,
    "a layout of types or of a program, which units have to share anyway": r"""
        __code_model_\w+__ __SIZEOF_\w+__ __LDBL_\w+__ __FLT64X_\w+__ __LONG_DOUBLE_\w+__ __DECIMAL_DIG__ __SEG_\w+
        __NO_MATH_INLINES __FLT_EVAL_METHOD\w* _SOFT_FLOAT
    """,
    "the name of a processor": r"__tune_\w+ __(core|atom|corei7|k8)\w*",
}


def output(command, arguments):
    """What a compiler says, or None."""
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    return done.stdout + done.stderr if done.returncode == 0 else None


def macros(command, *arguments):
    """Macros before the first line, with their values, or None where a flag is unknown."""
    text = output(command, [*arguments, "-dM", "-E", "-x", "c++", "/dev/null"])
    return text and dict(re.findall(r"^#define (\w+) ?(.*)$", text, re.MULTILINE))


def flags_of(command, base):
    """All flags for the processor that a compiler knows and that take no value."""
    if "__clang__" in base:
        said = output(command, ["--autocomplete=-m"]) or ""
        extensions = re.findall(r"^ {4}(\w[\w-]*) {2,}", output(command, ["--print-supported-extensions"]) or "",
                                re.MULTILINE)
    else:
        said = output(command, ["-Q", "--help=target"]) or ""
        wrong = subprocess.run([*command, "-march=armv8-a+?", "-E", "-x", "c++", "/dev/null"],
                               capture_output=True, text=True)
        listed = re.search(r"valid arguments are: ([\w .+-]+)", wrong.stderr)
        extensions = listed[1].split() if listed else []
    found = set(re.findall(r"^\s*(-m(?!no-)[\w.-]+)(?=\s|$)", said, re.MULTILINE))
    if "__aarch64__" in base:
        # Some need a newer architecture beneath.
        found |= {f"-march=armv{a}-a+{name}" for name in extensions for a in ("8", "9")}
    return sorted(found - ELSEWHERE)


def unknown_macros(command, known_text):
    """Flags by the macros that they define or change and that nothing knows; and how many were tried."""
    base = macros(command)
    if not base:
        sys.exit(f"zero: {' '.join(command)} does not list its macros")
    known = re.compile("|".join([*" ".join(NO_CODE.values()).split(), *re.findall(r"\w+", known_text)]))
    unknown, tried = {}, 0
    flags = flags_of(command, base)
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for flag, found in zip(flags, pool.map(lambda flag: macros(command, flag), flags)):
            if not found:
                continue
            tried += 1
            for name in {name for name, value in found.items() if base.get(name) != value}:
                if not known.fullmatch(name):
                    unknown.setdefault(name, []).append(flag)
    return unknown, tried


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--flags", type=pathlib.Path, default=FLAGS, help="the header that knows macros")
    parser.add_argument("compiler", nargs=argparse.REMAINDER, help="a command, with its target if it has many")
    arguments = parser.parse_args()
    unknown, tried = unknown_macros(arguments.compiler, arguments.flags.read_text(encoding="utf-8"))
    for name, flags in sorted(unknown.items()):
        print(f"{name}: defined by {', '.join(flags[:4])}; neither in names nor known to change no code")
    print(f"{tried} flags, {len(unknown)} unknown macros")
    if tried < 20:
        print("zero: the compiler did not list its flags")
    return 1 if unknown or tried < 20 else 0


if __name__ == "__main__":
    sys.exit(main())
