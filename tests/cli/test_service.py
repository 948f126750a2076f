"""What `service` writes is right for systemd and launchd, and what it runs takes over from the dead."""

from __future__ import annotations

import os
import plistlib
import shlex
import shutil
import signal
import subprocess
from pathlib import Path

from perdure.cli.service import driving_command, launchd_plist, systemd_unit
from tests.cli.desk import Desk, bash, turn, until


def exec_start(unit: str) -> list[str]:
    line = next(line for line in unit.splitlines() if line.startswith("ExecStart="))
    return [word.replace("%%", "%").replace("$$", "$") for word in shlex.split(line.removeprefix("ExecStart="))]


def test_the_service_takes_over_from_a_driver_that_dies(desk: Desk) -> None:
    model = desk.script(turn("Going.", bash("until test -e go; do sleep 0.05; done; echo sk-0123456789abcdef0123")), "Done.")
    driver = desk.start("run", "work", "--session", "s", "--model", model)
    until(lambda: "call_started" in desk.kinds("s"))
    command = exec_start(desk.perdure("service", "print").stdout)
    service = subprocess.Popen(command, env=desk.environment, cwd="/", stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        driver.send_signal(signal.SIGKILL)
        driver.communicate()
        until(lambda: desk.kinds("s").count("epoch_raised") == 2)
        (desk.project / "go").touch()
        assert desk.perdure("wait", "s").stdout == "Done.\n"
    finally:
        service.terminate()
        said, _ = service.communicate(timeout=10)
    assert "[s]     [redacted]\n" in said.decode() and "sk-0123" not in said.decode()
    assert desk.kinds("s").count("call_started") == 1


def test_a_unit_quotes_what_systemd_would_read(tmp_path: Path) -> None:
    home = tmp_path / 'a "home" of 100% $HOME'
    unit = systemd_unit(driving_command(home), tmp_path / "environment")
    assert exec_start(unit) == driving_command(home)
    assert "KillMode=process" in unit.splitlines()
    if analyze := shutil.which("systemd-analyze"):
        file = tmp_path / "perdure.service"
        file.write_text(unit)
        verified = subprocess.run([analyze, "verify", "--man=no", str(file)], capture_output=True, text=True, timeout=60)
        assert str(file) not in verified.stderr and "perdure.service" not in verified.stderr


def test_an_agent_of_launchd_is_one_process_with_its_variables(tmp_path: Path) -> None:
    environment = tmp_path / "the environment"
    environment.write_text("SOME_API_KEY='a b'\n")
    agent = plistlib.loads(
        launchd_plist(["/bin/sh", "-c", "echo $SOME_API_KEY $0 $PPID", "word's"], environment, tmp_path / "log")
    )
    assert (agent["RunAtLoad"], agent["KeepAlive"], agent["AbandonProcessGroup"]) == (True, True, True)
    ran = subprocess.run(agent["ProgramArguments"], capture_output=True, text=True)
    assert ran.stdout.split() == ["a", "b", "word's", str(os.getpid())]


def test_without_a_service_there_is_nothing_to_remove(desk: Desk) -> None:
    ran = desk.perdure("service", "uninstall", XDG_CONFIG_HOME=str(desk.folder / "config"))
    assert (ran.returncode, "there is no service" in ran.stderr) == (2, True)


def test_commands_and_sessions_are_completed(desk: Desk) -> None:
    def completed(words: str, word: int) -> list[str]:
        asked = {"COMP_WORDS": words, "COMP_CWORD": str(word), "_PERDURE_COMPLETE": "bash_complete"}
        return [line.partition(",")[2] for line in desk.perdure(**asked).stdout.splitlines()]

    assert completed("perdure sh", 1) == ["show"]
    assert completed("perdure show ", 2) == [""]  # no home yet
    for name in ("alpha", "beta"):
        assert desk.perdure("run", "hi", "--session", name, "--model", desk.script("Hello.")).returncode == 0
    assert completed("perdure show ", 2) == ["beta", "alpha"]
    assert completed("perdure show al", 2) == ["alpha"]
    for shell in ("bash", "zsh", "fish"):
        assert "_PERDURE_COMPLETE" in desk.perdure("completion", shell).stdout
