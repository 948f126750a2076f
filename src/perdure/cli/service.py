"""`service`: let the machine itself drive, so that sessions go on after a reboot without anybody logging in.

A systemd user unit, or a launchd agent on macOS, that runs `perdure resume --watch` on this home. It is stopped by ending its main process alone
(`KillMode=process`): commands that run then go on under their supervisors, and the next life of the service takes them over.
"""

from __future__ import annotations

import os
import plistlib
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import click
from msgspec import Struct

from perdure.engine.places import home_path
from perdure.record.errors import PerdureError, UsageError

UNIT = "perdure.service"
LABEL = "dev.perdure.resume"
RESTART_S = 2
STOP_S = 5
"""A driver that is told to go is gone within 2 s."""


@click.group
def service() -> None:
    """Let the machine drive: sessions go on after a reboot."""


@service.command
def install() -> None:
    """Install and start the service for this home, as you."""
    kind = _kind()
    kind.path.parent.mkdir(parents=True, exist_ok=True)
    kind.environment.parent.mkdir(parents=True, exist_ok=True)
    kind.path.write_bytes(kind.text)
    click.echo(f"wrote {kind.path}")
    for command in kind.start:
        _told(command)
    click.echo("it drives every session of this home that needs a driver, now and after a reboot")
    for line in kind.advice:
        click.echo(f"    {line}")


@service.command
def uninstall() -> None:
    """Stop the service and remove it. Commands that run go on; `perdure resume` takes them over."""
    kind = _kind()
    if not kind.path.exists():
        raise UsageError(f"there is no service: {kind.path} does not exist")
    for command in kind.stop:
        _told(command, must=False)
    kind.path.unlink()
    click.echo(f"removed {kind.path}")


@service.command
def status() -> None:
    """What the service is doing, in the words of whoever runs it."""
    kind = _kind()
    if not kind.path.exists():
        raise UsageError(f"there is no service: {kind.path} does not exist; `perdure service install` makes it")
    _told(kind.look, must=False)


@service.command("print")
def show() -> None:
    """Print what install would write."""
    click.echo(_kind().text, nl=False)


# ---- who runs it -------------------------------------------------------------------------------------------------------------


class Kind(Struct, frozen=True):
    """How this system runs a service of a user. `environment` is a file of NAME=VALUE lines: a service sees no shell's variables."""

    path: Path
    text: bytes
    environment: Path
    start: tuple[tuple[str, ...], ...]
    stop: tuple[tuple[str, ...], ...]
    look: tuple[str, ...]
    advice: tuple[str, ...]


def _kind() -> Kind:
    command = driving_command(home_path())
    if sys.platform == "darwin":
        return _launchd(command)
    return _systemd(command)


def driving_command(home: Path) -> list[str]:
    """What the service runs. -P: what lies in a current directory is no module of ours."""
    return [sys.executable, "-P", "-m", "perdure.cli.main", "--home", str(home), "resume", "--watch"]


def _systemd(command: Sequence[str]) -> Kind:
    config = Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser()
    environment = config / "perdure" / "environment"
    control = ("systemctl", "--user")
    return Kind(
        path=config / "systemd" / "user" / UNIT,
        text=systemd_unit(command, environment).encode(),
        environment=environment,
        start=((*control, "daemon-reload"), (*control, "enable", "--now", UNIT)),
        stop=((*control, "disable", "--now", UNIT),),
        look=(*control, "--no-pager", "status", UNIT),
        advice=(
            f"keys of providers: NAME=VALUE lines in {environment} (chmod 600), then systemctl --user restart {UNIT}",
            "before anybody logs in: loginctl enable-linger",
        ),
    )


def systemd_unit(command: Sequence[str], environment: Path) -> str:
    """The unit (systemd.service(5), systemd.kill(5))."""
    return f"""[Unit]
Description=Perdure: go on with coding agents' sessions
StartLimitIntervalSec=0

[Service]
ExecStart={" ".join(map(_systemd_word, command))}
EnvironmentFile=-{str(environment).replace("%", "%%")}
KillMode=process
TimeoutStopSec={STOP_S}
Restart=always
RestartSec={RESTART_S}

[Install]
WantedBy=default.target
"""


def _systemd_word(word: str) -> str:
    """Quoted as systemd.service(5) has it, where % and $ mean something."""
    if "\n" in word:
        raise UsageError(f"{word!r} can't stand in a unit file; name a home without a newline")
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"'


def _launchd(command: Sequence[str]) -> Kind:
    library = Path("~/Library").expanduser()
    path = library / "LaunchAgents" / f"{LABEL}.plist"
    environment = library / "Application Support" / "perdure" / "environment"
    domain = f"gui/{os.getuid()}"
    return Kind(
        path=path,
        text=launchd_plist(command, environment, library / "Logs" / "perdure.log"),
        environment=environment,
        start=(("launchctl", "bootstrap", domain, str(path)),),
        stop=(("launchctl", "bootout", f"{domain}/{LABEL}"),),
        look=("launchctl", "print", f"{domain}/{LABEL}"),
        advice=(f"keys of providers: NAME=VALUE lines in {environment} (chmod 600), then uninstall and install again",),
    )


def launchd_plist(command: Sequence[str], environment: Path, log: Path) -> bytes:
    """The agent (launchd.plist(5)). A shell reads the file of variables, since launchd can't; `exec` leaves one process."""
    file = shlex.quote(str(environment))
    script = f"set -a; if [ -r {file} ]; then . {file}; fi; exec {shlex.join(command)}"
    return plistlib.dumps(
        {
            "Label": LABEL,
            "ProgramArguments": ["/bin/sh", "-c", script],
            "RunAtLoad": True,
            "KeepAlive": True,
            "ThrottleInterval": RESTART_S,
            "ExitTimeOut": STOP_S,
            "AbandonProcessGroup": True,
            "StandardOutPath": str(log),
            "StandardErrorPath": str(log),
        }
    )


def _told(command: Sequence[str], *, must: bool = True) -> None:
    """Run it, its words shown. PerdureError with what to type where it can't be done here."""
    by_hand = f"the file is written; where that works, type: {shlex.join(command)}"
    if shutil.which(command[0]) is None:
        raise PerdureError(f"{command[0]} is not on this system; {by_hand}")
    ran = subprocess.run(command, stdin=subprocess.DEVNULL, check=False)
    if ran.returncode and must:
        raise PerdureError(f"{shlex.join(command)} failed (exit {ran.returncode}); {by_hand}")
