"""`perdure`: the table of commands, and the rim where every error becomes a line for a person and an exit code.

Exit codes: 0 done; 1 failed, aborted or waiting; 2 a wrong request; 75 another driver took over; 78 trying again can't help; 129, 130 and 143 after
SIGHUP, Ctrl-C and SIGTERM. Whatever is not a PerdureError is a fault of ours: its traceback goes to a file in the home, and one line says where.
"""

from __future__ import annotations

import io
import os
import sys
import time
import traceback
from pathlib import Path
from typing import NoReturn

import click

import perdure
from perdure.cli.lazy import Lazy, LazyGroup
from perdure.record.errors import PerdureError, UsageError
from perdure.spaced import steps

INTERRUPTED = 130
SIGNALLED = 128
"""Above it: left on a signal."""

COMMANDS = {
    "run": Lazy("perdure.cli.run:run", "Give a session something to do, and drive it until that is done."),
    "chat": Lazy("perdure.cli.chat:chat", "Talk with a session, a line at a time."),
    "resume": Lazy("perdure.cli.resume:resume", "Go on with a session, or with all that need it, after whatever happened."),
    "ls": Lazy("perdure.cli.listing:ls", "List the sessions, and what each waits for."),
    "show": Lazy("perdure.cli.reading:show", "Show what was said and done, and what recovery did."),
    "log": Lazy("perdure.cli.reading:log", "Show a session's records."),
    "attach": Lazy("perdure.cli.attach:attach", "See a session at work, whoever drives it, until it rests."),
    "submit": Lazy("perdure.cli.inbox:submit", "Tell a session something, without driving it."),
    "abort": Lazy("perdure.cli.inbox:abort", "Stop what a session does and what it was given to do."),
    "abandon": Lazy("perdure.cli.abandon:abandon", "Give a session up, so that another may use its directory."),
    "approve": Lazy("perdure.cli.approve:approve", "Allow a call that a session waits with."),
    "deny": Lazy("perdure.cli.approve:deny", "Deny a call that a session waits with."),
    "compact": Lazy("perdure.cli.compact:compact", "Have the conversation so far summed up."),
    "wait": Lazy("perdure.cli.waiting:wait", "Wait until a session has settled, whoever drives it."),
    "diff": Lazy("perdure.cli.differing:diff", "Show what changed in the files."),
    "apply": Lazy("perdure.cli.apply:apply", "Bring a session's changes home."),
    "verify": Lazy("perdure.cli.verifying:verify", "Check that the directory is what the log says."),
    "salvage": Lazy("perdure.cli.salvage:salvage", "List, show and bring back what recovery took away."),
    "rm": Lazy("perdure.cli.rm:rm", "Remove sessions that nobody needs any more."),
    "gc": Lazy("perdure.cli.gc:gc", "Free the room that no session needs any more."),
    "config": Lazy("perdure.cli.config:config", "Show what is configured, and where from."),
    "stats": Lazy("perdure.cli.stats:stats", "Show what sessions took: tokens, what they cost, and time."),
    "service": Lazy("perdure.cli.service:service", "Let the machine drive: sessions go on after a reboot."),
    "completion": Lazy("perdure.cli.completion:completion", "Print what completes commands and sessions in your shell."),
    "doctor": Lazy("perdure.cli.doctor:doctor", "Look at what Perdure stands on, on this machine."),
    "demo": Lazy("perdure.cli.demo:demo", "See an agent mend a small project while it is killed three times."),
    "chaos": Lazy("perdure.cli.chaos:chaos", "Kill, freeze and race sessions at random, and check that nothing is lost."),
}


@click.group(
    cls=LazyGroup,
    lazy=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
    epilog="A SESSION is named by its id or a unique beginning of it; left out, it is the newest one on the directory (-C DIR, by default here).",
)
@click.option(
    "--home", metavar="DIR", help="Where Perdure keeps everything; by default $PERDURE_HOME, else the user's state directory."
)
@click.version_option(perdure.__version__, message="perdure %(version)s")
@click.pass_context
def group(ctx: click.Context, home: str | None) -> None:
    """A durable runtime for coding agents: kill anything at any instant, and the agent goes on."""
    if home is not None:
        os.environ["PERDURE_HOME"] = str(Path(home).expanduser().absolute())
    ctx.obj = home


def main() -> NoReturn:
    """Run the command of this process's arguments, and exit."""
    if os.environ.get(steps.ENVIRONMENT):
        steps.listen("driver")
    _ready_streams()
    try:
        code = group.main(prog_name="perdure", standalone_mode=False)
        sys.stdout.flush()
    except BaseException as error:
        code = _told(error)
        if code > SIGNALLED:
            from perdure.cli.screen import leave

            leave(code)
    sys.exit(code if isinstance(code, int) else 0)


def _ready_streams() -> None:
    """Whatever comes can be read and written, also where a stream was closed before we began."""
    for name, mode, errors in (
        ("stdin", "r", "surrogateescape"),
        ("stdout", "w", "backslashreplace"),
        ("stderr", "w", "backslashreplace"),
    ):
        stream = getattr(sys, name) or open(os.devnull, mode)  # noqa: SIM115
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=errors)
        setattr(sys, name, stream)


def _told(error: BaseException) -> int:
    """Say it in a line or two on stderr; the exit code."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    match error:
        case SystemExit(code=code):
            return code if isinstance(code, int) else 1
        case click.exceptions.NoArgsIsHelpError():
            click.echo(error.format_message(), err=True)
            return error.exit_code
        case click.ClickException():
            hint = f"\n`{error.ctx.command_path} --help` shows how" if isinstance(error, click.UsageError) and error.ctx else ""
            _say(f"{error.format_message()}{hint}")
            return error.exit_code
        case PerdureError():
            _say(str(error))
            return error.exit_code
        case click.Abort() | KeyboardInterrupt():
            return INTERRUPTED
        case UnicodeEncodeError(object=str(text)):
            _say(f"{text!r} is not UTF-8 text and can't be stored; choose another name")
            return UsageError.exit_code
        case BrokenPipeError():
            # Whoever read our output has gone; the interpreter must not try to flush into the pipe again.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 1
        case _:
            _say(f"this should not have happened: {type(error).__name__}: {error}\nthe details are in {_crash_file(error)}")
            return 1


def _say(text: str) -> None:
    click.echo(f"perdure: {text}", err=True)


def _crash_file(error: BaseException) -> Path:
    """Where the traceback was written: in the home, or where temporary files go."""
    import tempfile

    from perdure.engine.places import home_path
    from perdure.history.redaction import Redaction

    name = f"crash-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{os.getpid()}.txt"
    text = f"perdure {perdure.__version__}\n{' '.join(sys.argv)}\n\n{''.join(traceback.format_exception(error))}"
    text = Redaction(os.environ)(text)
    for path in (home_path() / name, Path(tempfile.gettempdir()) / name):
        try:
            path.touch(mode=0o600, exist_ok=False)
            path.write_text(text, errors="backslashreplace")
        except OSError:
            continue
        return path
    sys.stderr.write(text)
    return Path("the lines above")


if __name__ == "__main__":
    main()
