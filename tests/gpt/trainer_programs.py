"""What the tests of the trainers share: small models, a text, and runs as a user has them."""

import json
import pathlib
import subprocess
import tempfile
import unittest

SMALL = {"--layers": 1, "--heads": 2, "--channels": 16, "--context": 16, "--batch": 2}
DIVIDED = SMALL | {"--layers": 3, "--heads": 4}
TEXT = "".join(f"line {i}: the quick brown fox jumps over the lazy dog\n" for i in range(200))


class TrainerTest(unittest.TestCase):
    """Every test has a folder of its own, and a model that it may change."""

    name = "train_gpt"
    launched = False

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.text = self.folder / "text"
        self.text.write_text(TEXT)
        self.model = SMALL

    def program(self):
        """The words before all options."""
        raise NotImplementedError

    def command(self, *arguments):
        """Options that a test gives take the place of the model's."""
        options = {"--text": self.text, **self.model}
        words = [word for option in options.items() if option[0] not in arguments
                 for word in option]
        return [str(word) for word in (*self.program(), *words, *arguments)]

    def run_trainer(self, *arguments):
        return subprocess.run(
            self.command(*arguments),
            capture_output=True,
            text=True,
            errors="replace",  # a young model does not write UTF-8
            timeout=240,
            cwd=self.folder,
        )

    def succeeds(self, *arguments):
        run = self.run_trainer(*arguments)
        self.assertEqual(run.returncode, 0, run.stderr)
        return run

    def result(self, *arguments):
        """A run, and all that it writes of itself."""
        path = self.folder / "result.json"
        run = self.succeeds("--json", path, *arguments)
        return run, json.loads(path.read_text())

    def failing(self, *arguments):
        """What a run says on the error stream that does not end well."""
        run = self.run_trainer(*arguments)
        self.assertNotEqual(run.returncode, 0)
        return run.stderr

    def refused(self, *arguments):
        """The one line that a run says before it has done anything."""
        run = self.run_trainer(*arguments)
        self.assertNotEqual(run.returncode, 0)
        lines = run.stderr.splitlines()
        if self.launched:  # which has its own to say
            lines = [line for line in lines if line.startswith(self.name)]
        else:
            self.assertEqual(run.stdout, "")
        self.assertEqual(len(lines), 1, run.stderr)
        self.assertTrue(lines[0].startswith(f"{self.name}: "), run.stderr)
        return lines[0]

    def started(self, *arguments, after_a_step=True):
        process = subprocess.Popen(self.command(*arguments), stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True, cwd=self.folder,
                                   start_new_session=True)
        self.addCleanup(process.kill)
        if after_a_step:
            next(line for line in process.stderr if " step 1/" in line)
        return process

    def require_checkpoints(self, program):
        run = subprocess.run([program, "--resume", "nowhere", "--text", self.text],
                             capture_output=True, text=True, timeout=60)
        if "built without checkpoints" in run.stderr:
            self.skipTest(run.stderr.strip())
