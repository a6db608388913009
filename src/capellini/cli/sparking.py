"""What the verbs of `capellini pipeline` share: where Spark runs and what it says of itself, options that are checked,
and what is said of a job when it has ended.

What Spark writes about itself goes to a file, which is named where Spark was what failed. Ctrl-C ends a verb with 130.
"""

from __future__ import annotations

import datetime
import logging
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
from click.core import ParameterSource

from capellini.cli.speaking import errors_said, hint, pairs, say_json
from capellini.model.errors import CannotOpen, Unavailable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from capellini.pipeline.jobs.running import Summary

Command = TypeVar("Command", bound=Callable[..., Any])
STDERR: Final = 2
INTERRUPTED: Final = 130  # as a shell says of what Ctrl-C ended; 1 would be a broken promise
MOST_S: Final = 1e9  # some thirty years


class Seconds(click.FloatRange):
    """What is no number is above no bound and below none: a range alone takes it."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if str(value).strip().lower().lstrip("+-") == "nan":
            self.fail(f"{value!r} is no number of seconds", param, ctx)
        return super().convert(value, param, ctx)


SECONDS: Final = Seconds(0, MOST_S)


def sparks(command: Command) -> Command:
    """The options of every verb: where Spark runs."""
    for option in (
        click.option(
            "--set", "settings", multiple=True, metavar="NAME=VALUE", help="A setting of Spark; again for more."
        ),
        click.option(
            "--memory-mb", type=click.IntRange(min=1), help="For Spark on this machine; fitted to it unless given."
        ),
        click.option(
            "--master", default="local[*]", show_default=True, metavar="URL",
            help="local[N], spark://HOST:PORT, or sc://HOST of Spark Connect.",
        ),
    ):  # fmt: skip
        command = option(command)
    return command


def as_in(form: str) -> Callable[[click.Context, click.Parameter, str], str]:
    """Days and hours become names of folders, and are compared as text: they are written as told, or refused."""

    def check(context: click.Context, option: click.Parameter, value: str) -> str:
        try:
            if value and datetime.datetime.strptime(value, form).strftime(form) != value:
                raise ValueError
        except ValueError:
            shown = datetime.datetime(2030, 1, 31, 8).strftime(form)
            raise click.BadParameter(f"{value!r} is not written as {shown} is") from None
        return value

    return check


def refuse(beside: str, *names: str) -> None:
    """Raises UsageError for options that were given and do nothing there: who is not told counts on them."""
    context = click.get_current_context()
    for option in context.command.params:
        if option.name in names and context.get_parameter_source(option.name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"{option.opts[0]} does nothing with {beside}: leave it out")


@contextmanager
def spark_on(
    master: str, memory_mb: int | None, settings: Sequence[str], delta: bool = False
) -> Iterator[SparkSession]:
    from capellini.pipeline.session import Plan, session

    with errors_said(), ours_alone(), set_aside() as log:
        chosen = pairs(settings, "a setting")
        interrupted = signal.getsignal(signal.SIGINT)
        with into(log):
            spark = session(Plan(master, memory_mb, delta=delta, settings=chosen))
        signal.signal(signal.SIGINT, interrupted)  # Spark's own asks Java in the middle of another question
        from capellini.pipeline.jobs.running import plainly

        try:
            with plainly():
                yield spark
        except OSError as error:  # a folder that may not be written, a full disk
            raise CannotOpen(f"{error.filename or 'a file'}: {error.strerror or error}") from error
        except KeyboardInterrupt:
            hint("interrupted")
            raise click.exceptions.Exit(INTERRUPTED) from None
        finally:
            spark.stop()


@contextmanager
def ours_alone() -> Iterator[None]:
    """Of what is logged only our own is shown: py4j tells of an interrupt with pages of traceback, as the root."""
    shown = logging.StreamHandler()
    shown.setLevel(logging.WARNING)
    shown.addFilter(lambda record: record.name.startswith("capellini"))
    logging.getLogger().addHandler(shown)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(shown)


@contextmanager
def set_aside() -> Iterator[Path]:
    """A file for what Spark says of itself: pages of it. It stays, and is named, where Spark was what failed."""
    number, name = tempfile.mkstemp(prefix="capellini-spark-", suffix=".log")
    os.close(number)
    log, kept = Path(name), False
    try:
        yield log
    except (CannotOpen, Unavailable) as error:
        kept = type(error.__cause__).__module__.startswith(("pyspark", "py4j"))
        if kept:
            hint(f"what Spark says of it is in {log}")
        raise
    finally:
        if not kept:
            log.unlink(missing_ok=True)


@contextmanager
def into(log: Path) -> Iterator[None]:
    """Processes that are started meanwhile have that file for their stderr, for good."""
    sys.stderr.flush()
    ours = os.dup(STDERR)
    try:
        with log.open("ab") as file:
            os.dup2(file.fileno(), STDERR)
        yield
    finally:
        os.dup2(ours, STDERR)
        os.close(ours)


def checkpoint_option(command: Command) -> Command:
    return click.option(
        "--checkpoint", required=True, metavar="FOLDER",
        help="Where the job keeps how far it is. Run again with the same one, it goes on; nothing comes twice.",
    )(command)  # fmt: skip


def say_summary(summary: Summary, as_json: bool, done: str, once: bool = True) -> None:
    """`once`: it was to end by itself, and has not done all of it if it was interrupted."""
    if as_json:
        say_json({"rows": summary.rows, "batches": summary.batches, "took_s": round(summary.took_s, 1)})
    else:
        rate = f"{summary.per_s:,.0f}/s"
        click.echo(f"{done} {summary.rows:,} messages in {summary.took_s:.1f} s ({rate}, {summary.batches} batches)")
    if once and summary.interrupted:
        hint("interrupted: run again with the same --checkpoint, it goes on")
        raise click.exceptions.Exit(INTERRUPTED)


def whole(path: str) -> str:
    """Spark's own folder may be another: paths of this machine are made whole."""
    return path if "://" in path else str(Path(path).absolute())


def is_delta(path: str) -> bool:
    return bool(path) and (Path(path) / "_delta_log").is_dir()
