"""Rules: a table of cases, what is wrong with an entry, and which sources add up."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.program.permissions import Rules, decide, parse
from perdure.record.errors import UsageError

RULES = parse(
    {
        "allow": [
            "bash(git status *)",
            "bash(git diff *)",
            "bash(npm test)",
            "bash(ls *)",
            "bash(find *)",
            "bash(sudo id)",
            "read",
            "edit(src/**)",
        ],
        "ask": ["bash(git push *)", "edit(src/deploy/**)", "mcp__*"],
        "deny": ["bash(rm *)", "bash(curl *)", "write(.env)", "read(*.key)", "write(/secrets/)"],
        "default": "ask",
    }
)
LOOSE = parse({"deny": ["bash(rm *)", "write(.env)"]})

ALLOW, ASK, DENY = "allow", "ask", "deny"

COMMANDS = [
    ("git status", ALLOW),
    ("git status --short", ALLOW),
    ("git statusx", ASK),
    ("git status; git diff HEAD~1", ALLOW),
    ("git status && rm -rf .", DENY),
    ("git status || rm x", DENY),
    ("git status | rm x", DENY),
    ("git status & rm x", DENY),
    ("git status\nrm x", DENY),
    ("git status\\\n --short", ALLOW),
    ("git status $(rm x)", DENY),
    ("git status `rm x`", DENY),
    ('git status "$(rm x)"', DENY),
    ("git status '$(rm x)'", ALLOW),
    ("git status <(rm x)", DENY),
    ("(rm x)", DENY),
    ("{ rm x; }", DENY),
    ("if git status; then rm x; fi", DENY),
    ("if git status; then ls; fi", ALLOW),
    ("for f in a b; do ls $f; done", ALLOW),
    ("for f in a b; do rm $f; done", DENY),
    ("while rm x; do ls; done", DENY),
    ("! rm x", DENY),
    ("time rm x", DENY),
    ("time -p rm x", DENY),
    ("/bin/rm x", DENY),
    ("\\rm x", DENY),
    ("r''m x", DENY),
    ('"rm" x', DENY),
    ("rm", DENY),
    ("rmdir x", ASK),
    ("$X x", ASK),
    ("r* x", ASK),
    ("git $X", ASK),
    ("FOO=1 rm x", DENY),
    ("FOO=1 git status", ASK),
    ("PATH=/evil; git status", ASK),
    (">out rm x", DENY),
    ("rm x >out", DENY),
    ("env rm x", DENY),
    ("env A=1 rm x", ASK),
    ("env -i rm x", ASK),
    ("env -S 'rm x'", ASK),
    ("nohup rm x", DENY),
    ("nohup npm test", ALLOW),
    ("timeout 5 npm test", ALLOW),
    ("timeout -k 1 5 rm x", DENY),
    ("timeout --foreground 5 rm x", ASK),
    ("nice -n 5 rm x", DENY),
    ("nice -n 5 npm test", ALLOW),
    ("command rm x", DENY),
    ("exec rm x", DENY),
    ("sudo rm x", DENY),
    ("sudo -u joe rm x", DENY),
    ("sudo npm test", ASK),
    ("sudo id", ALLOW),
    ("xargs rm", DENY),
    ("ls | xargs -n 1 rm", DENY),
    ("ls | xargs sh -c", ASK),
    ("ls | sh", ASK),
    ("sh -c 'rm x'", DENY),
    ("bash -lc 'rm x'", DENY),
    ("bash -c 'npm test'", ALLOW),
    ('bash -c "$X"', ASK),
    ("bash <<E\nrm x\nE", ASK),
    ("bash -c 'bash -c \"rm x\"'", DENY),
    ("eval rm x", DENY),
    ("eval 'rm x'", DENY),
    ("eval npm test", ALLOW),
    ("eval $X", ASK),
    ("find . -name x", ALLOW),
    ("find . -exec rm {} ;", ASK),
    ("find . -exec rm {} \\;", DENY),
    ("find . -exec ls {} +", ALLOW),
    ("find . -exec rm {} + -name y", DENY),
    ("cat <<E\n$(rm x)\nE", ASK),
    ("ls <<E\nhello\nE\nrm x", DENY),
    ("ls <<'E'\n$(rm x)\nE", ALLOW),
    ("f() { rm x; }; f", ASK),
    ("case x in x) rm y;; esac", ASK),
    ("trap 'rm x' EXIT", ASK),
    ("alias ls=rm", ASK),
    ("echo $((1 + 2))", ASK),
    ("ls $(( 1 + 2 ))", ALLOW),
    ("ls # rm x", ALLOW),
    ("ls #\nrm x", DENY),
    ("ls 'unfinished", ASK),
    ("ls > src/out", ASK),
    ("ls > /dev/null 2>&1", ALLOW),
    ("ls > .env", DENY),
    ("ls >> a/.env", DENY),
    ("ls > secrets/x", DENY),
    ("ls < x.key", DENY),
    ("ls > $X", ASK),
    ("git push", ASK),
    ("git push --force", ASK),
    ("git push; rm x", DENY),
    ("coproc rm x", ASK),
    ("[[ -v a ]]", ASK),
    ("$'rm' x", ASK),
    ("{rm,x}", ASK),
    ("r\\\nm x", ASK),
    ("", ASK),
]


@pytest.mark.parametrize(("command", "verdict"), COMMANDS)
def test_commands(command: str, verdict: str) -> None:
    assert decide(RULES, "bash", {"command": command}).verdict == verdict


@pytest.mark.parametrize(
    ("command", "verdict"),
    [
        ("make", ALLOW),
        ("FOO=1 make; echo $((1+2)) > out", ALLOW),
        ("rm x", DENY),
        ("$X", ASK),
        ("ls | xargs grep foo", ALLOW),
        ("ls | xargs -I{} {}", ASK),
        ("echo rm x", ALLOW),
        ("echo $X", ALLOW),
        ("python - <<'E'\nprint(1)\nE", ALLOW),
        ("cd /tmp && echo > x", ASK),
        ("command -v rm", ALLOW),
        ("watch 'rm x'", ASK),
        ("su -c 'rm x'", ASK),
        ("ssh host rm x", ASK),
        ("watch date", ASK),
        ("PS4='$(rm x)'; set -x; ls", ASK),
        ("BASH_ENV=x bash -c ls", ASK),
    ],
)
def test_commands_where_everything_else_is_allowed(command: str, verdict: str) -> None:
    assert decide(LOOSE, "bash", {"command": command}).verdict == verdict


@pytest.mark.parametrize(
    ("tool", "args", "verdict"),
    [
        ("read", {"path": "a"}, ALLOW),
        ("read", {"path": "deep/er/my.key"}, DENY),
        ("read", {"path": "a/../my.key"}, DENY),
        ("write", {"path": ".env"}, DENY),
        ("write", {"path": "./x/../.env"}, DENY),
        ("write", {"path": "/project/.env"}, DENY),
        ("write", {"path": "/elsewhere/.env"}, DENY),
        ("write", {"path": "secrets/a/b"}, DENY),
        ("write", {"path": "x/secrets/a"}, ASK),
        ("write", {"path": "x"}, ASK),
        ("edit", {"path": "src/a.py"}, ALLOW),
        ("edit", {"path": "src/x/y/a.py"}, ALLOW),
        ("edit", {"path": "src/../a.py"}, ASK),
        ("edit", {"path": "/project/src/a.py"}, ALLOW),
        ("edit", {"path": "/elsewhere/src/a.py"}, ASK),
        ("edit", {"path": "src/deploy/x"}, ASK),
        ("list", {}, ASK),
        ("mcp__x", {"a": 1}, ASK),
        ("unheard_of", {}, ASK),
    ],
)
def test_paths_and_tools(tool: str, args: dict[str, Any], verdict: str) -> None:
    assert decide(RULES, tool, args, "/project").verdict == verdict


def test_without_rules_everything_is_allowed() -> None:
    assert decide(Rules(), "bash", {"command": "rm $X $(("}).verdict == ALLOW
    assert decide(Rules(), "write", {"path": "/x"}).verdict == ALLOW


def test_the_deciding_rule_is_named_with_its_place() -> None:
    rules = parse({"deny": ["bash(rm *)"]}, "perdure.toml:7")
    decision = decide(rules, "bash", {"command": "true && rm x"})
    assert (decision.rule, decision.where) == ("bash(rm *)", "perdure.toml:7")


def test_an_exact_command_may_be_allowed_that_no_pattern_could() -> None:
    rules = parse({"allow": ["bash(make && echo $((N + 1)))"], "default": "deny"})
    assert decide(rules, "bash", {"command": "make && echo $((N + 1))"}).verdict == ALLOW
    assert decide(rules, "bash", {"command": "make && echo $((M + 1))"}).verdict == DENY


def test_what_nobody_can_tell_is_denied_where_the_rest_is() -> None:
    rules = parse({"allow": ["bash(ls *)"], "deny": ["bash(rm *)"], "default": "deny"})
    assert decide(rules, "bash", {"command": "$X"}).verdict == DENY


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"forbid": []}, "there are allow, ask, deny and default"),
        ({"default": "maybe"}, 'it can be "allow", "ask" or "deny"'),
        ({"deny": "bash"}, "is a list of entries"),
        ({"deny": ["bash(rm"]}, "is no rule"),
        ({"deny": [""]}, "is no rule"),
        ({"deny": ["bash()"]}, "is no rule"),
        ({"deny": [3]}, "is no rule"),
        ({"ask": ["mcp__x(a)"]}, "take a pattern"),
    ],
)
def test_a_wrong_entry_is_named_with_what_would_be_right(table: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=r"^here: ") as error:
        parse(table, "here")
    assert said in str(error.value)
