"""cmake/gpu_proof.sh in a folder of its own, where every program it calls is made up: which parts there are, what a
part that fails does to the page and to the status, and what is said where something is missing."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
COPIED = ("cmake/gpu_proof.sh", "cmake/gpu_proof_page.py", "bench/plot.py", "tests/nccl_library/processes.sh",
          "tests/cuda/sanitize.sh")
# Of the system's programs these and no others are found.
TOOLS = ("sh", "env", "cat", "sed", "grep", "cut", "tr", "head", "tail", "date", "mkdir", "mktemp", "rm", "cp", "find",
         "timeout", "python3", "git", "uname", "nproc", "seq", "wc", "dirname", "paste", "sleep")
GPUS_PARTS = ["configure", "build", "operations", "bits", "captured_step", "other_tests", "processes", "killed_rank",
              "ordered", "native", "windows", "steps", "configure_gpt", "build_gpt", "gpt"]
ONE_GPU_PARTS = ["configure", "build_tests", "bits", "threads", "captured_step", "tests", "build_update", "update",
                 "build_nccl", "nccl_one_rank", "nccl_two_processes", "configure_gpt", "build_gpt", "gpt", "memcheck",
                 "build_collectives", "collectives", "build_steps", "slow_rows"]
# One folder has all that is emulated.
EMULATED_GPUS_PARTS = [part for part in GPUS_PARTS if part != "configure_gpt"]
EMULATED_PARTS = ["configure", "build_tests", "tests", "build_nccl", "nccl", "collectives", "build_slow_rows",
                  "slow_rows", "build_gpt", "gpt"]
PROGRAMS = [
    ("full/tests/emulated", "zero_emulated_tests"),
    ("full/tests/emulated", "zero_emulated_nccl_collective_bench"),
    ("full/tests/emulated", "zero_emulated_nccl_step_bench"),
    ("full/tests/emulated", "zero_emulated_in_process_collective_bench"),
    ("full/tests/emulated", "zero_emulated_in_process_step_bench"),
    ("full/tests/emulated", "zero_emulated_train_gpt"),
    ("full/examples/gpt", "train_gpt"),
    ("cuda/tests/cuda", "zero_cuda_tests"),
    ("cuda/tests/nccl_library", "zero_nccl_gpu_tests"),
    ("cuda/bench/cuda", "cuda_update_bench"),
    ("cuda/bench/cuda", "cuda_in_process_collective_bench"),
    ("cuda/bench/cuda", "cuda_in_process_step_bench"),
    ("cuda/bench/cuda", "cuda_nccl_collective_bench"),
    ("cuda/bench/cuda", "cuda_nccl_step_bench"),
    ("cuda_gpt/examples/gpt", "train_gpt"),
    ("cuda_gpt/examples/gpt/cuda", "train_gpt_cuda"),
]
# Configures, says which targets there are, and builds those that are asked for. It has no target that MISSING
# names, and finds a mistake in those that BROKEN names.
CMAKE = """#!/bin/sh
has() { case " $1 " in *" $2 "*) ;; *) false ;; esac; }
if [ "$1" = --preset ]; then
  echo "cmake $*" >>configured
  ! has "$BROKEN" configure || { echo "CMake Error: there is no doctest" >&2; exit 1; }
  build=build/$2
  [ "$3" != -B ] || build=$4
  mkdir -p "$build"
  echo "NCCL_INCLUDE_DIR:PATH=${NCCL-$PWD}" >"$build/CMakeCache.txt"
  for name in $MISSING; do echo "-- zero: no Google Benchmark, so $name is not built"; done
  exit
fi
build=$2
if [ "$4" = help ]; then
  while read -r folder name; do
    case "build/$folder" in "$build"/*) has "$MISSING" "$name" || echo "$name: phony" ;; esac
  done <programs
  exit
fi
shift 3
status=0
while [ "$1" != -- ]; do
  if has "$BROKEN" "$1"; then
    echo "name.cu(7): error: a mistake"
    status=1
  else
    folder=$(sed -n "s|^${build#build/}/\\(.*\\) $1$|${build#build/}/\\1|p" programs)
    mkdir -p "build/$folder"
    cp program "build/$folder/$1"
  fi
  shift
done
exit "$status"
"""
# Any program: notes how it was called. Where one of FAIL, SKIP, HANG and EMPTY is a part of that, it fails, is
# skipped, hangs or runs no test.
PROGRAM = """#!/bin/sh
call="${0##*/} $*"
echo "$call rank ${ZERO_TEST_RANK-}${NCCL_HOSTID-} on ${CUDA_VISIBLE_DEVICES-}" >>calls
asked() { [ -n "$1" ] || return 1; case "$call" in *"$1"*) ;; *) false ;; esac; }
! asked "${HANG-}" || exec sleep 60
! asked "${SKIP-}" || { echo "skipped: not on this machine"; exit 77; }
! asked "${FAIL-}" || { echo "file.cu(3): ERROR: CHECK( 1 == 2 ) is NOT correct!"; exit 1; }
case "$call" in
  *"never takes"*)
    [ -n "${SURVIVE-}" ] || [ "$((${ZERO_TEST_RANK:--1} + 1))" != "${ZERO_TEST_RANKS-none}" ] || kill -9 $$
    ;;
esac
for word; do
  case "$word" in
    --benchmark_out=*) cp rows.json "${word#*=}" ;;
  esac
done
echo "NCCL 9, registration: none" >&2
[ -z "${IMPOSSIBLE-}" ] || echo "file.cu(9): MESSAGE: not possible here: $IMPOSSIBLE"
tests=4
! asked "${EMPTY-}" || tests=0
echo "test cases: $tests | done by ${0##*/}"
"""
ROWS = {"benchmarks": [{"name": "collective/all_gather/bf16/out_of_place/bytes:8192/ranks:2", "label": "raw: NCCL",
                        "real_time": 5, "algbw": 2.0, "busbw": 1.0, "raw_algbw": 4.0}]}
TRAINER = "import sys\nprint('MFU of', *sys.argv[1:])\n"
SLOW_ROWS = """import os, sys
print('rows of', *sys.argv[1:])
print('norm 0.91, goal 0.95')
print('a warning', file=sys.stderr)
sys.exit(int(os.environ.get('ROWS', 0)))
"""
NVIDIA_SMI = """#!/bin/sh
[ "${GPUS:-2}" != 0 ] || { echo "no devices were found"; exit 6; }
case "$1" in
  topo) echo "GPU0 NV18 GPU1" ;;
  *) for gpu in $(seq 1 "${GPUS:-2}"); do echo "NVIDIA H0, 580.1"; done ;;
esac
"""


class Proof(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)
        self.bin = self.folder / "bin"
        self.bin.mkdir()
        for tool in TOOLS:
            if found := shutil.which(tool):
                (self.bin / tool).symlink_to(found)
        for name in COPIED:
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, self.folder / name)
        (self.folder / "rows.json").write_text(json.dumps(ROWS))
        (self.folder / "bench/gpt_on_gpu.py").write_text(TRAINER)
        (self.folder / "bench/cuda").mkdir()
        (self.folder / "bench/cuda/rows.py").write_text(SLOW_ROWS)
        (self.folder / "programs").write_text("".join(f"{folder} {name}\n" for folder, name in PROGRAMS))
        (self.folder / "nccl.h").write_text("#define NCCL_MAJOR 2\n#define NCCL_MINOR 28\n#define NCCL_PATCH 9\n")
        self.make(self.folder / "program", PROGRAM)
        self.make(self.bin / "cmake", CMAKE)
        self.make(self.bin / "nvidia-smi", NVIDIA_SMI)
        self.make(self.bin / "nvcc", "#!/bin/sh\necho 'Cuda compilation tools, release 13.0, V13'\n")
        self.make(self.bin / "ninja", "#!/bin/sh\n")
        self.make(self.bin / "compute-sanitizer", "#!/bin/sh\n")

    @staticmethod
    def make(path, text):
        path.write_text(text)
        path.chmod(0o755)

    def command(self, *arguments):
        return [self.bin / "sh", self.folder / "cmake/gpu_proof.sh", *arguments]

    def environment(self, **more):
        return {"PATH": str(self.bin), "HOME": str(self.folder), **more}

    def prove(self, *arguments, **environment):
        return subprocess.run(self.command(*arguments), cwd=self.folder, env=self.environment(**environment),
                              capture_output=True, text=True, check=False, timeout=120)

    def page(self):
        return json.loads((self.folder / "build/gpu_proof.json").read_text())

    def results(self):
        return {part["name"]: part["result"] for part in self.page()["parts"]}

    def said(self, name):
        return next(part["said"] for part in self.page()["parts"] if part["name"] == name)

    def calls(self):
        return (self.folder / "calls").read_text()

    def test_every_part_is_listed(self):
        for arguments, parts in (("--gpus 2", GPUS_PARTS), ("--emulated --gpus=2", EMULATED_GPUS_PARTS),
                                 ("", ONE_GPU_PARTS), ("--emulated", EMULATED_PARTS)):
            with self.subTest(arguments):
                done = self.prove(*arguments.split())
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
                self.assertEqual(list(self.results()), parts)
                shown = {name: result for name, result in self.results().items() if result != "passed"}
                self.assertEqual(shown, {})
                for part in parts:
                    self.assertRegex(done.stdout, rf"\n  {part} +(passed|skipped) ")

    def test_the_page_says_where_what_and_how_fast(self):
        done = self.prove("--gpus", "2", GPUS="4", CUDA_VISIBLE_DEVICES="3,1,0", IMPOSSIBLE="no windows")
        self.assertEqual(done.returncode, 0, done.stderr)
        page = self.page()
        self.assertEqual(page["machine"]["GPUs"], "NVIDIA H0, 580.1, 3 of them, used: 3,1")
        self.assertEqual(page["machine"]["NCCL"], "2.28.9")
        self.assertEqual(page["machine"]["CUDA"], "13.0, V13")
        self.assertEqual(page["machine"]["command"], "gpu_proof.sh --gpus 2")
        self.assertEqual(page["topology"], ["GPU0 NV18 GPU1"])
        self.assertIn("ZERO_WITH_NCCL=ON", (self.folder / "configured").read_text())
        ordered = next(part for part in page["parts"] if part["name"] == "ordered")
        self.assertEqual(ordered["figures"][0], "NCCL 9, registration: none")
        self.assertIn("baseline: NCCL", ordered["figures"][1])
        self.assertIn("0.50", ordered["said"])
        self.assertIn("steps, in part: not possible here: no windows", page["not_shown"])
        built = "build/cuda_gpt/examples/gpt"
        self.assertEqual(page["parts"][-1]["figures"],
                         [f"MFU of {built}/train_gpt {built}/cuda/train_gpt_cuda --json build/gpu_proof/gpt.json "
                          "--ranks 2 --nccl"])
        for words in (ordered["figures"][3], "topology", "used: 3,1", "not shown"):
            self.assertIn(words, done.stdout)
        self.assertEqual(done.stdout, (self.folder / "build/gpu_proof.txt").read_text())
        calls = self.calls().splitlines()
        self.assertTrue(all(call.endswith(" on 3,1") for call in calls), calls)
        for words in ("--ranks 2 --dtype bf16", "--native --windows --benchmark_out", "cuda_nccl_step_bench 8388608",
                      "never takes* rank 0 on", "never takes* rank 1 on"):
            self.assertTrue(any(words in call for call in calls), (words, calls))

    def test_a_part_that_fails_is_shown_and_stops_no_other(self):
        for mode, parts in (("--gpus=2", GPUS_PARTS), ("--emulated --gpus=2", EMULATED_GPUS_PARTS)):
            with self.subTest(mode):
                done = self.prove(*mode.split(), FAIL="--test-case=NCCL: training")
                self.assertEqual(done.returncode, 1)
                results = self.results()
                self.assertEqual(list(results), parts)
                self.assertEqual(results.pop("bits"), "failed")
                self.assertEqual(set(results.values()), {"passed"})
                self.assertEqual(self.page()["failed"], ["bits"])
                self.assertEqual(self.said("bits"), "file.cu(3): ERROR: CHECK( 1 == 2 ) is NOT correct!")
                self.assertIn("bits failed; it printed last\n  file.cu(3): ERROR", done.stdout)
                self.assertIn("zero: bits: failed: file.cu(3)", done.stderr)

    def test_a_missed_goal_is_shown_with_its_figure(self):
        for mode, options in (("", "--seconds 290 --save build/gpu_proof/slow_rows.json"), ("--emulated", "--emulated")):
            with self.subTest(mode):
                done = self.prove(*mode.split(), ROWS="1")
                self.assertEqual(done.returncode, 1)
                page = self.page()
                self.assertEqual(page["failed"], ["slow_rows"])
                part = next(part for part in page["parts"] if part["name"] == "slow_rows")
                build = "build/full" if mode else "build/cuda"
                self.assertEqual(part["figures"], [f"rows of {build} {options}", "norm 0.91, goal 0.95"])
                self.assertEqual(part["log"], ["a warning"])
                self.assertEqual(done.stdout.count("\n  norm 0.91, goal 0.95\n"), 1)

    def test_a_part_has_a_limit(self):
        done = self.prove("--gpus=2", HANG="--test-case=NCCL: training", ZERO_PROOF_LIMIT="5")
        self.assertEqual(done.returncode, 1)
        self.assertEqual(self.said("bits"), "not over after its limit of 5 s")
        results = self.results()
        self.assertEqual([results["bits"], results["captured_step"]], ["failed", "passed"])

    def test_what_there_is_no_time_for_is_not_shown(self):
        done = self.prove("--gpus=2", HANG="--test-case=NCCL: training", ZERO_PROOF_SECONDS="12")
        self.assertEqual(done.returncode, 0, done.stdout)
        results = self.results()
        self.assertEqual([results["bits"], results["steps"]], ["no time", "no time"])
        self.assertIn("steps: no time", self.page()["not_shown"])

    def test_who_interrupts_it_has_a_page(self):
        with subprocess.Popen(self.command("--gpus=2"), cwd=self.folder, stdout=subprocess.PIPE, text=True,
                              stderr=subprocess.DEVNULL,
                              env=self.environment(HANG="--test-case=NCCL: training")) as proof:
            log = self.folder / "build/gpu_proof/bits.out"
            for _ in range(300):
                if log.exists():
                    break
                time.sleep(0.1)
            proof.send_signal(signal.SIGTERM)
            printed = proof.communicate(timeout=30)[0]
        self.assertEqual(proof.returncode, 130)
        self.assertIn("interrupted", printed)
        self.assertEqual(list(self.results().items())[-1], ("bits", "failed"))

    def test_tests_that_ran_nothing_have_failed(self):
        done = self.prove("--gpus=2", EMPTY="--test-case=NCCL: a captured")
        self.assertEqual(done.returncode, 1)
        self.assertEqual(self.said("captured_step"), "no test was run")

    def test_what_is_skipped_says_why(self):
        done = self.prove("--gpus=2", SKIP="--windows")
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertEqual(self.results()["windows"], "skipped")
        self.assertIn("windows: not on this machine", self.page()["not_shown"])

    def test_what_cannot_be_built_is_no_older_program(self):
        self.assertEqual(self.prove("--gpus=2").returncode, 0)
        done = self.prove("--gpus=2", BROKEN="zero_nccl_gpu_tests", MISSING="cuda_nccl_collective_bench")
        self.assertEqual(done.returncode, 1)
        results = self.results()
        self.assertEqual(self.page()["failed"], ["build"])
        self.assertEqual(self.said("build"), "name.cu(7): error: a mistake")
        self.assertEqual([results["bits"], results["ordered"], results["steps"]], ["skipped", "skipped", "passed"])
        self.assertEqual(self.said("bits"), "zero_nccl_gpu_tests was not built")
        self.assertEqual(results["gpt"], "passed")
        self.assertEqual(self.said("ordered"), "no Google Benchmark, so cuda_nccl_collective_bench is not built")
        self.assertEqual(self.prove("--gpus=2", BROKEN="configure").returncode, 1)
        self.assertEqual(self.page()["failed"], ["configure", "configure_gpt"])
        self.assertIn("there is no doctest", self.said("configure"))

    def test_a_version_without_the_trainer_says_so(self):
        done = self.prove("--gpus=2", MISSING="train_gpt_cuda")
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertIn("no Google Benchmark, so train_gpt_cuda is not built", self.said("gpt"))
        (self.folder / "bench/gpt_on_gpu.py").unlink()
        done = self.prove("--gpus=2")
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertIn("gpt: this version has no train_gpt_cuda", self.page()["not_shown"])

    def test_one_gpu_shows_what_is_right(self):
        done = self.prove("--gpus=1")
        self.assertEqual(done.returncode, 0, done.stdout)
        results = self.results()
        self.assertEqual(list(results), GPUS_PARTS)
        self.assertNotIn("--nccl", self.said("gpt"))
        self.assertIn("ZERO_WITH_NCCL=OFF", (self.folder / "configured").read_text())
        for name in ("ordered", "native", "windows", "steps"):
            self.assertEqual(results[name], "skipped")
            self.assertIn("one GPU", self.said(name))
        self.assertIn("2 processes on one GPU passed, of which the last one was killed", self.said("killed_rank"))
        self.assertIn("rank 1zero-1 on 0", self.calls())

    def test_a_rank_that_is_not_killed_has_failed(self):
        done = self.prove("--gpus=2", SURVIVE="never takes")
        self.assertEqual(done.returncode, 1)
        self.assertEqual(self.said("killed_rank"), "of 2 processes these failed: rank 1 with status 0")

    def test_processes_fail_by_rank(self):
        script = [self.folder / "tests/nccl_library/processes.sh"]
        for environment, status, words in (({}, 0, "3 processes passed"),
                                           ({"FAIL": "--x"}, 1, "rank 0 with status 1, rank 1 with status 1"),
                                           ({"EMPTY": "--x"}, 1, "rank 2 with status 0, and ran no test"),
                                           ({"SKIP": "--x"}, 77, "skipped: there is no GPU")):
            done = subprocess.run([*script, self.folder / "program", "3", "--x"], cwd=self.folder, text=True,
                                  env=self.environment(**environment), capture_output=True, check=False)
            self.assertEqual(done.returncode, status, done.stdout + done.stderr)
            self.assertIn(words, done.stdout.splitlines()[-1])
        done = subprocess.run(script, env=self.environment(), capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 2)
        self.assertIn("Usage: processes.sh", done.stderr)

    def test_mistakes_have_words(self):
        for arguments, environment, status, words in (
                (["--frob"], {}, 2, "there is no option --frob"),
                (["--gpus"], {}, 2, "from 1 to 8"),
                (["--gpus", "nine"], {}, 2, "not 'nine'"),
                (["--gpus=9"], {}, 2, "not '9'"),
                (["--gpus=3"], {}, 1, "needs: 3; that programs see: 2 (CUDA_VISIBLE_DEVICES: not set)"),
                (["--gpus=2"], {"CUDA_VISIBLE_DEVICES": "1"}, 1, "needs: 2; that programs see: 1"),
                ([], {"CUDA_VISIBLE_DEVICES": ""}, 1, "needs: 1; that programs see: 0"),
                (["--emulated", "--gpus=3"], {}, 1, "needs: 3; that programs see: 2"),
                (["--gpus=2"], {"GPUS": "0"}, 1, "no GPU: nvidia-smi says 'no devices were found'")):
            done = self.prove(*arguments, **environment)
            self.assertEqual(done.returncode, status, arguments)
            self.assertIn(words, done.stderr)
            self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        for missing, words in (("nvidia-smi", "no nvidia-smi"), ("nvcc", "no nvcc"), ("ninja", "no ninja")):
            (self.bin / missing).unlink()
            done = self.prove("--gpus=2")
            self.assertEqual(done.returncode, 1)
            self.assertIn(words, done.stderr)
        self.assertFalse((self.folder / "build").exists())

    def test_without_nccl_it_says_what_to_install(self):
        done = self.prove("--gpus=2", NCCL="NCCL_INCLUDE_DIR-NOTFOUND",
                          MISSING="zero_nccl_gpu_tests cuda_nccl_collective_bench cuda_nccl_step_bench")
        self.assertEqual(done.returncode, 1)
        self.assertEqual(self.page()["failed"], ["nccl"])
        self.assertIn("libnccl-dev", self.said("nccl"))
        self.assertIn("zero: nccl: failed: CMake found no NCCL", done.stderr)
        self.assertEqual(self.results()["operations"], "skipped")

    def test_help(self):
        done = self.prove("--help")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        for part in GPUS_PARTS[2:-3]:
            self.assertIn(part, done.stdout)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[1:]])
