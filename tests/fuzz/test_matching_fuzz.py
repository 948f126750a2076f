"""The matcher against bash itself: whatever bash runs of a program that is denied, the rules do not let through."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from perdure.program.permissions import decide, parse

BASE = "/usr/bin:/bin"
LOOSE = parse({"deny": ["bash(denied *)"]})
TIGHT = parse(
    {"allow": [f"bash({name} *)" for name in ("fine", "true", "echo", "cat", "sudo", "xargs", "find", "exec")], "default": "ask"}
)

PLAIN = st.sampled_from(
    ["fine", "true", "echo a", "echo 'a b'", "cat /dev/null", "echo $HOME", 'echo "$HOME"', "fine # x", "X=1", "X=1 fine", "cd ."]
)
BAD = st.sampled_from(
    [
        "denied",
        "denied x",
        "'denied' x",
        'den"ied"',
        "\\denied",
        "d\\enied x",
        "den\\\nied",
        "$(echo denied) x",
        "`echo denied`",
        "X=denied; $X",
        "denie[d]",
        "$'denied'",
        "$'\\x64enied'",
        '$"denied"',
        "{denied,x}",
        "X=den; ${X}ied",
        "${Y:-denied}",
        "A=1 denied",
        ">/dev/null denied",
        "2>&1 denied",
        "${Y:=denied}",
    ]
)
WRAPPERS = [
    "{} ",
    "({})",
    "{{ {}; }}",
    "fine; {}",
    "fine && {}",
    "false || {}",
    "fine | {}",
    "{} | fine",
    "fine & {}",
    "fine\n{}",
    "fine # x\n{}",
    "fine \\\n; {}",
    "! {}",
    "if true; then {}; fi",
    "if {}; then true; fi",
    "while ! {}; do true; done",
    "for x in 1; do {}; done",
    "until {}; do break; done",
    "f() {{ {}; }}; f",
    "f () {{ {}\n}}\nf",
    "case x in x) {};; esac",
    "echo $({})",
    'echo "$({})"',
    "echo `{}`",
    "cat <({})",
    "echo x > >({})",
    "X=$({})",
    "X=$({}) true",
    "echo ${{Y:-$({})}}",
    "echo $(( $({}; echo 1) ))",
    "cat <<E\n$({})\nE",
    "cat <<'E'\nx\nE\n{}",
    "cat <<-E\n\tx\n\tE\n{}",
    "cat <<E; {}\nx\nE",
    "cat <<E\n`{}`\nE",
    "[[ -n $({}) ]]",
    "time {}",
    "time -p {}",
    "fine;{}",
    "fine&&{}",
    "coproc {}",
    "a=($({}))",
    "echo 'x' \"y $({})\"",
    "fine <<<$({})",
    "fine >/dev/null; {}",
    "fine 2>&1 && {}",
    "true || fine; {}",
    "fine &\n{}",
    "\n\n{}\n",
    "fine |& {}",
    "x=1\n{}",
    "function g {{ {}; }}; g",
    "select x in 1; do {}; break; done </dev/null; {}",
    "echo $[ $({}; echo 1) ]",
    "(( $({}; echo 1) ))",
    "declare -i n=1; {}",
    "echo {{a,b}}; {}",
    "trap '{q}' EXIT",
    "eval '{q}'",
    'eval "{q}"',
    "bash -c '{q}'",
    "sh -c '{q}'",
    "bash -ec '{q}'",
    "bash -c -- '{q}'",
    "bash <<'E'\n{q}\nE",
    "bash <<<'{q}'",
    "echo '{q}' | bash",
    "echo '{q}' | sh -s",
    "source <(echo '{q}')",
    ". /dev/stdin <<'E'\n{q}\nE",
    "env bash -c '{q}'",
    "timeout 5 sh -c '{q}'",
    "nohup bash -c '{q}'",
    "bash -c 'bash -c \"{q}\"'",
    "X='{q}'; eval \"$X\"",
    "X='{q}'; bash -c \"$X\"",
    "X='a[$({q})]'; echo $((X))",
    "X='a[$({q})]'; test -v \"$X\"",
    "X='{q}'; echo \"${{X@P}}\"",
    "shopt -s expand_aliases\nalias fine='{q}'\nfine",
    "env -S \"bash -c '{q}'\"",
    "find . -maxdepth 0 -exec sh -c '{q}' \\;",
    "printf -v 'a[$({q})]' x",
    "let 'a[$({q})]=1'",
    "read 'a[$({q})]' <<<x",
    "unset 'a[$({q})]'",
    "mapfile -t -c1 -C '{q};:' <<<x",
    "PS4='$({q})'; set -x; fine",
]
SIMPLE = st.sampled_from(["denied", "denied x", "'denied' y", "\\denied"])
RUNNERS = st.sampled_from(
    [
        "env {}",
        "env A=1 {}",
        "env -i PATH=$PATH {}",
        "nohup {}",
        "nice {}",
        "nice -n 1 {}",
        "nice -1 {}",
        "timeout 5 {}",
        "timeout -k 1 5 {}",
        "timeout --foreground 5 {}",
        "setsid -w {}",
        "stdbuf -oL {}",
        "command {}",
        "command -p -- {}",
        "exec {}",
        "exec -a x {}",
        "xargs {} </dev/null",
        "echo a | xargs {}",
        "echo a | xargs -n1 {}",
        "echo a | xargs -I@ {} @",
        "echo {} | xargs env",
        "find . -maxdepth 0 -exec {} ;",
        "find . -maxdepth 0 -exec {} \\;",
        "find . -maxdepth 0 -exec {} {{}} +",
        "find . -maxdepth 0 -execdir env {} \\;",
        "env env nohup {}",
        "timeout 5 env {}",
        "flock . {}",
        "flock . -c '{}'",
        "nice env timeout 5 {}",
        "builtin command {}",
        "\\env {}",
        "/usr/bin/env {}",
        "'timeout' 5 {}",
        "ionice {}",
        "script -qc '{}' /dev/null",
        'sudo() {{ "$@"; }}; sudo {}',
        "env --split-string='{}'",
        "env -S'{}'",
        "env -u X {}",
    ]
)


@st.composite
def lines(draw: st.DrawFn) -> str:
    runner = draw(st.one_of(st.just("{}"), RUNNERS))
    text = draw(BAD) if runner == "{}" else runner.format(draw(SIMPLE))
    for _ in range(draw(st.integers(0, 3))):
        wrapper = draw(st.sampled_from(WRAPPERS))
        text = (
            wrapper.format(text, q=text.replace("'", "'\\''"))
            if "{q}" in wrapper
            else wrapper.format(*[text] * wrapper.count("{}"))
        )
    parts = [*draw(st.lists(PLAIN, max_size=2)), text, *draw(st.lists(PLAIN, max_size=1))]
    return draw(st.sampled_from(["; ", "\n", " && ", " & "])).join(parts)


@pytest.fixture(scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("programs")
    for name, text in (("denied", f"echo x >> {folder}/mark"), ("fine", "true")):
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    (folder / "work").mkdir()
    return folder


def runs_it(folder: Path, line: str) -> bool:
    """Whether bash came to run `denied`."""
    mark = folder / "mark"
    mark.unlink(missing_ok=True)
    process = subprocess.Popen(
        ["bash", "-c", line],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=folder / "work",
        env={"PATH": f"{folder}:{BASE}", "HOME": str(folder / "work")},
        start_new_session=True,
    )
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        process.wait()
    return mark.exists()


@pytest.mark.parametrize("rules", [LOOSE, TIGHT], ids=["denied", "not-allowed"])
@settings(
    max_examples=int(os.environ.get("PERDURE_MATCHING_EXAMPLES", "120")), deadline=None, suppress_health_check=list(HealthCheck)
)
@given(line=lines())
@example(line="X=1; >f time -p denied")
@example(line="echo a\\\n#x\ndenied")
@example(line="echo $\\\n(denied)")
@example(line='echo "$\\\n(denied)"')
@example(line="cat <<E\n$\\\n(denied)\nE")
@example(line="echo a#b; denied")
@example(line="cat <<E\\\nF\nx\nEF\ndenied")
@example(line="echo '\\'; denied '")
@example(line="echo \\\\\ndenied")
@example(line='for x in denied; do "$x"; done')
@example(line="i\\\nf denied; then true; fi")
def test_what_bash_runs_is_never_let_through(line: str, rules: object, stub: Path) -> None:
    verdict = decide(rules, "bash", {"command": line}, str(stub / "work")).verdict  # type: ignore[arg-type]
    if verdict == "allow":
        assert not runs_it(stub, line), line


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="denied;&|()`$'\"\\\n #<>{}=x-*", max_size=60))
def test_no_line_breaks_the_matcher(line: str) -> None:
    assert decide(LOOSE, "bash", {"command": line}).verdict in ("allow", "ask", "deny")
