"""Figures are held against their bars, and shown as JSON and as a table."""

from __future__ import annotations

import io
import json
import math
from collections.abc import AsyncIterator

import pytest
from click.testing import CliRunner
from rich.console import Console

from capellini.bench import figures
from capellini.bench.parts import measured
from capellini.cli import bench

SUITES = {"store", "work", "timed", "log", "counters", "pipeline", "peers"}


def test_every_bar_is_a_comparison_and_a_number() -> None:
    for name in figures.BARS:
        compare, wanted = figures.bar_of(name)
        assert compare in (">=", "<=") and wanted > 0
    assert {name.partition(".")[0] for name in figures.BARS} == SUITES


@pytest.mark.parametrize(
    ("name", "value", "holds"),
    [
        ("store.rocks.sync_write_b100_vs_bare", 0.6, True),
        ("store.rocks.sync_write_b100_vs_bare", 0.5999, False),
        ("store.cassandra.rounds_per_cas_200_rows", 1.0, True),
        ("store.cassandra.rounds_per_cas_200_rows", 1.01, False),
        ("work.rocks.b100.cpu_vs_redis", 2.0, True),
        ("work.rocks.b100.cpu_vs_redis", 2.1, False),
    ],
)
def test_a_figure_holds_when_it_reaches_its_bar(name: str, value: float, holds: bool) -> None:
    assert figures.judge(name, value).holds is holds


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_no_number_does_not_hold(value: float) -> None:
    figure = figures.judge("store.simulated.virtual_s_per_s", value)
    assert figure.value is None and not figure.holds


def test_a_figure_that_holds_only_by_rounding_does_not_hold() -> None:
    figure = figures.judge("store.rocks.sync_write_b100_vs_bare", 0.599_999)
    assert not figure.holds


def test_a_name_without_a_bar_is_refused() -> None:
    with pytest.raises(KeyError):
        figures.judge("store.rocks.something_else", 1.0)


def test_what_was_not_measured_says_why_and_does_not_hold() -> None:
    figure = figures.unmeasured("peers.recovery_1M_s", "no peer is installed")
    assert figure.value is None and not figure.holds
    shown = json.loads(figures.as_json_line(figure))
    assert shown["value"] is None and shown["detail"] == {"reason": "no peer is installed"}


def test_a_json_line_has_the_documented_fields() -> None:
    line = figures.as_json_line(figures.judge("work.cassandra.b100.rounds", 0.031, {"messages": 20_000}))
    assert json.loads(line) == {
        "figure": "work.cassandra.b100.rounds",
        "value": 0.031,
        "bar": "<= 0.04",
        "holds": True,
        "detail": {"messages": 20_000},
    }
    assert "\n" not in line


def test_names_are_picked_by_prefix_with_or_without_the_suite() -> None:
    rocks = figures.names("store", "store.rocks")
    assert rocks == figures.names("store", "rocks") and len(rocks) == 3
    assert len(figures.names("store")) == 6
    assert figures.names("store", "nothing") == []


def test_the_chart_is_half_full_at_the_bar() -> None:
    half, full = "█" * (figures.CHART_WIDTH // 2), "█" * figures.CHART_WIDTH
    at_bar = figures.chart(figures.judge("store.rocks.scan_vs_bare", 0.4))
    assert at_bar.startswith(half) and "█" + half not in at_bar
    assert figures.chart(figures.judge("store.rocks.scan_vs_bare", 40.0)) == full
    assert figures.chart(figures.judge("store.cassandra.rounds_per_cas_200_rows", 0.0)) == full
    assert figures.chart(figures.judge("store.cassandra.rounds_per_cas_200_rows", 4.0)).count("█") < len(half)
    assert figures.chart(figures.unmeasured("store.rocks.scan_vs_bare", "x")) == ""


def test_the_table_shows_every_figure_with_its_value_and_bar() -> None:
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(
        figures.as_page(
            [
                figures.judge("store.rocks.scan_vs_bare", 0.5, {"rows": 12_345}),
                figures.unmeasured("peers.recovery_1M_s", "no peer"),
            ]
        )
    )
    shown = console.export_text()
    assert any("scan_vs_bare" in line and "0.5" in line and ">= 0.4" in line for line in shown.splitlines())
    for word in ("store.rocks.scan_vs_bare", "0.5", ">= 0.4", "12,345", "peers.recovery_1M_s", "not measured"):
        assert word in shown


# ---- the command


def run(*arguments: str, made: list[figures.Figure] | None = None, monkeypatch: pytest.MonkeyPatch) -> tuple[int, str]:
    """The command with a suite that measures nothing: what is shown and how it ends is what matters here."""

    async def suite(_quick: bool, only: str | None) -> AsyncIterator[figures.Figure]:
        wanted = figures.names("store", only)
        for figure in made or []:
            if figure.figure in wanted:
                yield figure

    monkeypatch.setattr(bench, "suite", lambda _name: suite)
    result = CliRunner().invoke(bench.bench, ["store", *arguments])
    return result.exit_code, result.output


GOOD = figures.judge("store.rocks.scan_vs_bare", 0.5)
BAD = figures.judge("store.rocks.writes_per_fsync_1000_tasks", 1.0)


def test_the_command_prints_json_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    code, output = run("--json", made=[GOOD, BAD], monkeypatch=monkeypatch)
    assert code == 0
    assert [json.loads(line)["holds"] for line in output.splitlines()] == [True, False]


async def test_a_part_that_fails_or_says_nothing_takes_no_other_along() -> None:
    async def fails(_quick: bool, _wanted: list[str]) -> list[figures.Figure]:
        raise OSError("no disk")

    async def half(_quick: bool, _wanted: list[str]) -> list[figures.Figure]:
        return [GOOD]

    wanted = [BAD.figure, GOOD.figure]
    failed = await measured(fails, True, wanted)
    assert [(each.figure, each.value) for each in failed] == [(name, None) for name in wanted]
    assert "no disk" in str(failed[0].detail)
    assert [each.value for each in await measured(half, True, wanted)] == [None, 0.5]


def test_only_strict_fails_on_a_bar_that_does_not_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(made=[GOOD, BAD], monkeypatch=monkeypatch)[0] == 0
    assert run("--strict", made=[GOOD, BAD], monkeypatch=monkeypatch)[0] == 1
    assert run("--strict", made=[GOOD], monkeypatch=monkeypatch)[0] == 0


def test_a_prefix_without_figures_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    code, output = run("--only", "nothing", monkeypatch=monkeypatch)
    assert code == 2 and "store.rocks.scan_vs_bare" in output
