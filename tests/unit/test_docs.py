"""The pages are true: links lead somewhere, commands exist, tables are those of the code, examples run as printed.

`docs/settings.md` is made from the code. When a test here says that it is out of date, write it anew:

    .venv/bin/python -m tests.unit.test_docs
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, get_type_hints

import click
import pytest
from prometheus_client.core import Metric
from tests.unit.memory_service import MemoryService

import capellini
from capellini.api.counters import CounterMetrics
from capellini.api.gate import Gate
from capellini.api.http import HEADERS_MOST
from capellini.api.journal_metrics import JournalMetrics
from capellini.api.limits import Limits
from capellini.api.log_metrics import LogFigures, LogMetrics
from capellini.api.metrics import Metrics
from capellini.api.problems import STATUS
from capellini.api.queue_metrics import QueueMetrics
from capellini.api.timed_metrics import TimedFigures, TimedMetrics
from capellini.cli.main import capellini as command_line
from capellini.model import options
from capellini.model.counters import CounterFigures
from capellini.model.log import MAX_FILTERS, MAX_GROUPS, GroupOptions
from capellini.model.scheduling import MAX_SCHEDULE_BODY
from capellini.model.timed import MAX_DUE_S, ShardView
from capellini.node.journal import JournalFigures
from capellini.node.settings import TABLE, Settings
from capellini.proof.checkers import CHECKERS
from capellini.queues.work import looking
from capellini.store.interface import Counts
from capellini.store.schema import TABLES

ROOT: Final = Path(__file__).resolve().parents[2]
PAGES: Final = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
NAMES: Final = [str(page.relative_to(ROOT)) for page in PAGES]
FENCE: Final = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK: Final = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
SPAN: Final = re.compile(r"`(capellini [^`]+)`")
SHELL_WORDS: Final = frozenset(("|", "||", "&&", ";", ">", ">>", "<", "&"))
SETTINGS_PAGE: Final = ROOT / "docs" / "settings.md"


def text_of(name: str) -> str:
    return (ROOT / name).read_text()


# ---- links


def anchors(text: str) -> set[str]:
    """The anchors that a page's headings make."""
    heads = re.findall(r"^#+ (.+)$", FENCE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("name", NAMES)
def test_links_lead_somewhere(name: str) -> None:
    page = ROOT / name
    dead = []
    for link in LINK.findall(FENCE.sub("", page.read_text())):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target.read_text())):
            dead.append(link)
    assert dead == []


def test_every_page_is_reached_from_the_readme() -> None:
    seen: set[Path] = set()
    left = [ROOT / "README.md"]
    while left:
        page = left.pop()
        if page in seen:
            continue
        seen.add(page)
        for link in LINK.findall(page.read_text()):
            target = (page.parent / link.partition("#")[0]).resolve()
            if target.suffix == ".md" and target.exists():
                left.append(target)
            elif target.is_dir():
                left += target.glob("*.md")
    assert [name for name, page in zip(NAMES, PAGES, strict=True) if page not in seen] == []


# ---- commands


def commands_in(text: str) -> Iterator[str]:
    """Lines of code that begin with `capellini`, in blocks and in running text."""
    blocks = [body for _, body in FENCE.findall(text)]
    indented = re.findall(r"^ {4,}(.*)$", FENCE.sub("", text), re.MULTILINE)
    for line in [*"\n".join(blocks).replace("\\\n", " ").splitlines(), *indented]:
        bare = line.strip().removeprefix("$ ")
        if re.match(r"capellini [a-z]", bare) and "─" not in bare:
            yield bare
    yield from SPAN.findall(FENCE.sub("", text))


def fault_of(line: str) -> str | None:
    """What is wrong with a command, if anything."""
    words = []
    for word in shlex.split(line, comments=True)[1:]:
        if word in SHELL_WORDS:
            break
        words.append(word)
    command: click.Command = command_line
    context = click.Context(command)
    while words:
        word = words.pop(0)
        if word.startswith("-"):
            option = option_of(command, word)
            if option is None and word not in ("-h", "--help"):
                return f"{command.name} has no option {word}"
            if option is not None and not option.is_flag and "=" not in word and words:
                words.pop(0)
        elif isinstance(command, click.Group) and not word[0].isupper() and word != "...":
            found = command.get_command(context, word)
            if found is None:
                return f"{command.name} has no verb {word}"
            command = found
    return None


def option_of(command: click.Command, word: str) -> click.Option | None:
    name = word.partition("=")[0]
    options = [each for each in command.params if isinstance(each, click.Option)]
    return next((each for each in options if name in (*each.opts, *each.secondary_opts)), None)


@pytest.mark.parametrize("name", NAMES)
def test_commands_exist(name: str) -> None:
    found = {line: fault_of(line) for line in commands_in(text_of(name))}
    assert {line: fault for line, fault in found.items() if fault} == {}


def test_commands_that_do_not_exist_are_noticed() -> None:
    page = (
        "```sh\ncapellini dance\n```\n\n    capellini queue create jobs --colour red\n\nSay `capellini queue paint`.\n"
    )
    assert [fault_of(line) for line in commands_in(page)] == [
        "capellini has no verb dance",
        "create has no option --colour",
        "queue has no verb paint",
    ]


# ---- names of things


async def _no_views() -> list[ShardView]:
    return []


def queue_families() -> list[Metric]:
    timed = TimedMetrics(lambda: TimedFigures((1,)), _no_views)
    journal = JournalMetrics(lambda: JournalFigures(0, 0, 0, 0))
    queues = QueueMetrics(MemoryService(), lambda: 0.0)
    counting: Any = SimpleNamespace(counters=SimpleNamespace(figures=CounterFigures))
    counters = CounterMetrics(counting)
    ours = [*queues.collect(), *timed.collect(), *LogMetrics(LogFigures).collect()]
    return [*ours, *journal.collect(), *counters.collect()]


def test_metrics_that_are_named_exist() -> None:
    gate = Gate(Limits())
    metrics = Metrics(gate, store_counts=Counts)
    metrics.request(None, 200, 0.1)
    known = set(re.findall(r"^(?:# TYPE )?(\w+)", metrics.text()[0].decode(), re.MULTILINE))
    for family in queue_families():
        known.add(f"{family.name}_total" if family.type == "counter" else family.name)
    for name in NAMES:
        named = set(re.findall(r"\b((?:capellini|process)_[a-z_]+(?:_total|_seconds|_bytes|_fds))\b", text_of(name)))
        assert named - known == set(), name


def test_every_metric_of_a_node_is_explained() -> None:
    page = text_of("docs/operations.md")
    families = {family.name for family in Metrics(Gate(Limits()), store_counts=Counts).collect()}
    families |= {family.name for family in queue_families()}
    assert {each for each in families if each not in page and not each.startswith("capellini_store_")} == set()


def test_every_state_of_a_message_is_explained() -> None:
    table = text_of("docs/operations.md").partition("| state | do |\n|---|---|\n")[2].partition("\n\n")[0]
    told = {name for row in table.splitlines() for name in row.split("|")[1].strip().split(", ")}
    assert told == {*looking._SAYS, "acked", "moved", "expired"}


def test_every_table_and_column_is_explained() -> None:
    page = text_of("docs/storage.md")
    for table in TABLES:
        (row,) = re.findall(rf"^\| `{table.name}` \|(.*)$", page, re.MULTILINE)
        columns = [*table.partition, *table.clustering, *table.statics, *table.columns]
        assert [each.name for each in columns if not re.search(rf"\b{each.name}\b", row)] == [], table.name


def test_every_option_of_a_group_is_explained() -> None:
    named = {
        name
        for row in re.findall(r"^\| (`[^|]+`) \| (?:as the queue's|0|none) \|", text_of("docs/log.md"), re.MULTILINE)
        for name in re.findall(r"`(\w+)`", row)
    }
    assert named == set(GroupOptions.__struct_fields__)


def test_every_error_has_its_status() -> None:
    page = text_of("docs/protocol.md")
    found = {name: int(status) for name, status in re.findall(r"^\| `(\w+)` \| (\d{3}) \|", page, re.MULTILINE)}
    assert {name: found.get(name) for name in STATUS} == STATUS


def test_every_promise_names_its_checker() -> None:
    page = text_of("docs/guarantees.md")
    for number, checker in CHECKERS.items():
        section = re.search(rf"^### {number}\. .*?(?=^##)", page, re.MULTILINE | re.DOTALL)
        assert section is not None, number
        assert f"`{checker.__name__}`" in section[0], number


# ---- the page of settings


def settings_page() -> str:
    work, timed, log = (
        [
            f"| `{each.name}` | {_shown(each.default)} | {_range(each.least, each.most)} | "
            f"{'yes' if each.changeable else 'no'} | {each.says} |"
            for each in table
        ]
        for table in (options.WORK, options.TIMED, options.LOG)
    )
    defaults, types = Settings(), get_type_hints(Settings)
    node = [
        f"| `{each.name}` | {_shown(getattr(defaults, each.name))} | {_choices(types[each.name], each)} | {each.says} |"
        for each in TABLE
    ]
    return f"""# Settings

This page is made from the code by `.venv/bin/python -m tests.unit.test_docs`; a test says when it is out of date.

## Options of a work queue

Given when a queue is created (`capellini queue create jobs --set visibility_s=60`), and changed with
`capellini queue set jobs visibility_s=120` where the last column but one says yes. A value out of its range is refused,
and so is a name that is not here. Times are in seconds, sizes in bytes.

| option | default | from, to | can change | what it is |
|---|---|---|---|---|
{chr(10).join(work)}

## Options of a timed queue

Given and changed in the same way: `capellini queue create later --kind timed --set shards=8`. What they are about:
[timed queues](timed.md).

| option | default | from, to | can change | what it is |
|---|---|---|---|---|
{chr(10).join(timed)}

## Options of a log queue

Given and changed in the same way: `capellini queue create feed --kind log --set retention_s=86400`. What they are
about: [log queues](log.md). `visibility_s`, `delivery_limit` and the delays of nacks are what its groups have unless
[they say otherwise](log.md#groups).

| option | default | from, to | can change | what it is |
|---|---|---|---|---|
{chr(10).join(log)}

## Settings of a node

For `capellini serve`. The first of these that says something counts:

1. a flag: `--listen 127.0.0.1:7500` (underscores become dashes; `password` has no flag, since everybody on a machine
   can read command lines)
2. the environment: `CAPELLINI_LISTEN=127.0.0.1:7500`
3. a TOML file, named by `--config` or `CAPELLINI_CONFIG`: `listen = "127.0.0.1:7500"`
4. the default

A file with a name that is not here is refused; a variable that begins with `CAPELLINI_` and is not here is warned of.
`CAPELLINI_AT` is for the other verbs: where the node is.

| setting | default | from, to | what it is |
|---|---|---|---|
{chr(10).join(node)}

## Limits that are not settings

| what | at most |
|---|---|
{chr(10).join(f"| {what} | {most} |" for what, most in _limits())}
"""


def _limits() -> list[tuple[str, str]]:
    from capellini.model import message

    return [
        ("messages, receipts or items in one call", f"{message.MAX_BATCH:,}"),
        ("attributes of a message", f"{message.MAX_ATTRIBUTES}"),
        ("their names and values together", f"{message.MAX_ATTRIBUTE_BYTES:,} bytes"),
        ("an idempotency key", f"{message.MAX_KEY_CHARS} characters"),
        ("the delay of a put", f"{message.MAX_DELAY_S:,.0f} s"),
        ("how far ahead a message of a timed queue is due", f"{MAX_DUE_S:,.0f} s"),
        ("the body of a schedule", f"{MAX_SCHEDULE_BODY:,} bytes"),
        ("the wait of a get", f"{message.MAX_WAIT_S:g} s"),
        ("visibility", f"{message.MAX_VISIBILITY_S:,.0f} s"),
        ("the name of a queue, or of a group", options.NAME_RULE),
        ("groups of a log queue", f"{MAX_GROUPS}"),
        ("attributes in the filter of a group", f"{MAX_FILTERS}"),
        ("request line and headers", f"{Limits().max_head:,} bytes"),
        ("header lines of a request", f"{HEADERS_MOST}"),
    ]


def _shown(value: object) -> str:
    if value == "":
        return "empty"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:,.15g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else f"`{value}`"


def _range(least: float | None, most: float | None) -> str:
    return "" if least is None or most is None else f"{_shown(_whole(least))} to {_shown(_whole(most))}"


def _whole(value: float) -> float:
    return int(value) if float(value).is_integer() else value


def _choices(kind: Any, setting: Any) -> str:
    choices = getattr(kind, "__args__", ())
    if choices:
        return ", ".join(f"`{each}`" for each in choices)
    return "true or false" if kind is bool else _range(setting.least, setting.most)


def test_the_page_of_settings_is_that_of_the_code() -> None:
    assert SETTINGS_PAGE.read_text() == settings_page(), "write it anew: .venv/bin/python -m tests.unit.test_docs"


# ---- the protocol, as it is printed

VARYING: Final = (
    (re.compile(r"\b\d{10}\.\d+\b"), "TIME"),
    (re.compile(r'"oldest_age_s":[\d.]+'), '"oldest_age_s":AGE'),
    (re.compile(r'(_per_s"):[\d.]+'), r"\1:RATE"),
    (re.compile(r'(_after_s"):\{[^}]*\}'), r"\1:QUANTILES"),
    (re.compile(r'"receipt":"[\w-]{38}"'), '"receipt":"RECEIPT"'),
    (re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+\+00:00"), "TIME"),
    (re.compile(r"^date: .*$", re.MULTILINE), "date: DATE"),
    (re.compile(r'"(node)":"[^"]*"'), r'"\1":"NODE"'),
    (re.compile(r"[ \t\r]+$", re.MULTILINE), ""),
)
MARK: Final = "==== end of block"


def steady(text: str) -> str:
    for pattern, instead in VARYING:
        text = pattern.sub(instead, text)
    return text.strip()


def alike(printed: str, came: str) -> bool:
    """As printed, but for what differs each time; `..` stands for any byte."""
    printed, came = steady(printed), steady(came)
    if ".." not in printed:
        return printed == came
    want, got = printed.split(), came.split()
    return len(want) == len(got) and all(one in ("..", other) for one, other in zip(want, got, strict=True))


@pytest.fixture
def node(tmp_path: Path) -> Iterator[str]:
    command = [sys.executable, "-m", "capellini.cli.main", "serve", "--store", f"rocks:{tmp_path / 'data'}"]
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen([*command, "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        assert process.stdout is not None
        said = process.stdout.readline()
        address = re.search(r"http://[\d.:]+", said)
        assert address is not None, said + (tmp_path / "log").read_text()
        yield address[0]
    finally:
        process.terminate()
        process.wait(30)


def test_the_examples_of_the_protocol_come_out_as_printed(node: str, tmp_path: Path) -> None:
    curl = shutil.which("curl")
    assert curl, "curl is needed to try the examples of docs/protocol.md"
    blocks = FENCE.findall(text_of("docs/protocol.md"))
    shells = [index for index, (language, _) in enumerate(blocks) if language == "sh"]
    assert len(shells) >= 15
    script = "".join(f"{blocks[index][1]}\necho; echo '{MARK}'\n" for index in shells)
    script = script.replace("NODE=http://127.0.0.1:7411", f"NODE={node}")
    done = subprocess.run(["bash", "-eu", "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    came = done.stdout.split(MARK)
    for number, index in enumerate(shells):
        if index + 1 < len(blocks) and blocks[index + 1][0] == "text":
            printed = blocks[index + 1][1]
            assert alike(printed, came[number]), f"{blocks[index][1]}\nprinted:\n{printed}\ncame:{came[number]}"


def test_the_program_that_reads_beside_the_owner_runs(tmp_path: Path) -> None:
    (program,) = [body for language, body in FENCE.findall(text_of("docs/storage.md")) if language == "python"]
    with capellini.connect(f"rocks:{tmp_path / 'data'}") as client:
        client.create_queue("jobs")
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60
        )
    ours = [line for line in done.stdout.splitlines() if not line.startswith(options.INTERNAL)]
    assert (ours, done.stderr) == (["jobs live 1"], "")


if __name__ == "__main__":
    SETTINGS_PAGE.write_text(settings_page())
    print(f"wrote {SETTINGS_PAGE.relative_to(ROOT)}")
