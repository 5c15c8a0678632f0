"""What tests of zero-plan and validate-plan share: how they run them, and read what they say."""

import json
import pathlib
import subprocess
import unittest

PROGRAMS = {}


def start(zero_plan, validate_plan, folder):
    """Says which programs are run; returns the folder for files, which is there then."""
    PROGRAMS.update(zero=zero_plan, validate=validate_plan)
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def run(*arguments):
    """Runs the program that has this subcommand."""
    validates = arguments and arguments[0] in ("figures", "rows", "advice", "claims", "here")
    return subprocess.run([PROGRAMS["validate" if validates else "zero"], *map(str, arguments)],
                          capture_output=True, text=True, check=False)


def answer(*arguments):
    done = run(*arguments, "--json", "-")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def by(key, rows):
    return {row[key]: row for row in rows}


class ProgramTest(unittest.TestCase):
    def refused(self, words, *arguments, status=2):
        """Nothing is printed but one line on the error stream, which is returned."""
        done = run(*arguments)
        self.assertEqual((done.returncode, done.stdout), (status, ""), (arguments, done.stderr))
        self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
        self.assertIn(words, done.stderr)
        return done.stderr
