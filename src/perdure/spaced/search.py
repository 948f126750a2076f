"""Search file contents by a regular expression; a program of its own: `python -I -S search.py '{"pattern": …, "path": …, "glob": …, "limit": …}'`.

It runs as a command in the workspace, so that a time-out ends it and a pathological expression harms nobody. ripgrep does the work where there is
one; else Python's `re`, which knows a little more and is slower. At most `limit` lines are printed. Exit: 0 found, 1 nothing found, 2 an error.
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

LINE_CHARACTERS = 500
OUTPUT_CHARACTERS = 50 * 1024


def main(request: dict[str, Any]) -> int:
    pattern, path, glob = request["pattern"], request.get("path") or ".", request.get("glob")
    if not os.path.lexists(path):
        print("there is no %s" % path)
        return 2
    program = shutil.which("rg")
    try:
        lines = _ripgrep(program, pattern, path, glob) if program else _python(pattern, path, glob)
        return _print(lines, request.get("limit") or 200)
    except (re.error, ValueError) as error:
        print("not a regular expression: %s" % error)
        return 2


def _print(lines: Iterator[str], limit: int) -> int:
    count = size = 0
    for line in lines:
        if count == limit or size > OUTPUT_CHARACTERS:
            print("[more than %d matching lines; narrow the pattern, the path or the glob]" % count)
            break
        line = line.removeprefix("./")
        line = line if len(line) <= LINE_CHARACTERS else line[:LINE_CHARACTERS] + "…"
        print(line)
        count, size = count + 1, size + len(line)
    if not count:
        print("[nothing found]")
    return 0 if count else 1


def _ripgrep(program: str, pattern: str, path: str, glob: str | None) -> Iterator[str]:
    arguments = [
        program,
        "--no-config",
        "--no-messages",  # what can't be read is not told of, as by `_python`; a wrong pattern is
        "--line-number",
        "--with-filename",
        "--no-heading",
        "--color=never",
        "--crlf",
        "--hidden",
        "--sort=path",
    ]
    arguments += ["--glob=!.git"] + (["--glob=" + glob] if glob else []) + ["--regexp=" + pattern, "--", path]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL) as process:
        assert process.stdout is not None and process.stderr is not None
        found = False
        try:
            for line in process.stdout:
                found = True
                yield line.decode("utf-8", "replace").rstrip("\r\n")
        finally:
            process.kill()
        error = process.stderr.read().decode("utf-8", "replace").strip()
        if error and not found:
            raise ValueError(error)


def _python(pattern: str, path: str, glob: str | None) -> Iterator[str]:
    expression = re.compile(pattern.encode("utf-8"))
    for file in _files(path):
        if glob and not fnmatch.fnmatch(file if "/" in glob else os.path.basename(file), glob.lstrip("/")):
            continue
        try:
            fd = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
            with open(fd, "rb") as opened:
                if b"\0" in opened.read(8192):
                    continue
                opened.seek(0)
                for number, line in enumerate(opened, 1):
                    line = line.rstrip(b"\r\n")
                    if expression.search(line):
                        yield "%s:%d:%s" % (os.fsencode(file).decode("utf-8", "replace"), number, line.decode("utf-8", "replace"))
        except OSError:
            continue


def _files(path: str) -> Iterator[str]:
    """Regular files below the path, in order, version control left out."""
    if not os.path.isdir(path):
        yield path
        return
    for directory, directories, names in os.walk(path):
        directories[:] = sorted(name for name in directories if name != ".git")
        for name in sorted(names):
            file = os.path.normpath(os.path.join(directory, name))
            if os.path.isfile(file) and not os.path.islink(file):
                yield file


if __name__ == "__main__":
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")
    sys.exit(main(json.loads(sys.argv[1])))
