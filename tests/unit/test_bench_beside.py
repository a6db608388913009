"""The comparison with other queues: which lines are run, what is counted, what the figures and the page say of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from capellini.bench.beside import FULL, QUICK, SERVERS
from capellini.bench.beside_lines import LINES, NEEDED, OUR_LOG, OURS, chosen, queues_for, skipped
from capellini.bench.beside_page import BEGIN, END, made, placed, plots, spread, write
from capellini.bench.beside_plots import Bar, Panel, picture, short
from capellini.bench.beside_results import Queue, Results, behind, figure
from capellini.bench.beside_runs import Sample, counted, quantile
from capellini.bench.driver import LANES, Job, Report, Tally, Work, bodies_of
from capellini.bench.figures import names
from capellini.cli.main import capellini

SLOW, FAST, LAZY = "PostgreSQL", "Redis Streams", "NATS JetStream"


def sample(queue: str, line: str, measure: str, per_s: float, repeat: int = 0, **more: object) -> Sample:
    return Sample(queue, line, measure, repeat, messages=round(per_s), took_s=1.0, **more)  # type: ignore[arg-type]


def results(*samples: Sample, **missing: str) -> Results:
    labels = (OURS, OUR_LOG, SLOW, FAST, LAZY)
    durable = {LAZY: "not synced"}
    queues = tuple(Queue(label, "how", durable.get(label, ""), "1", missing.get(label, "")) for label in labels)
    return Results("2026-01-01 00:00", "2 cores", (1.0, 2.0), False, 60.0, queues, samples)


def job(role: str, tally: Path, **more: object) -> Job:
    common = {"peer": "p", "address": "a", "queue": "q", "batch": 10, "workers": 1, "messages": 100, "first_slot": 0}
    return Job(role=role, tally=str(tally), **{**common, **more})  # type: ignore[arg-type]


def test_every_figure_has_its_lines_and_a_figure_alone_runs_no_others() -> None:
    everything = names("peers")
    assert set(NEEDED) == set(everything)
    assert {name for lines in NEEDED.values() for name in lines} <= set(LINES)
    assert chosen(everything, quick=False) == list(LINES.values())
    assert {line.name for line in chosen(everything, quick=True)} < set(LINES)
    assert [line.name for line in chosen(["peers.fanout3_vs_best"], quick=False)] == ["fanout3"]
    labels = [kind.label for kind in SERVERS]
    assert queues_for(["peers.cpu_b100_vs_redis"], labels) == [OURS, "Redis Streams"]
    assert queues_for(everything, labels) == labels
    assert all(FULL.repeats >= line.often for line in LINES.values()) and QUICK.repeats == 1


def test_every_queue_has_a_lane_and_what_it_lacks_is_skipped_with_a_word() -> None:
    assert len({kind.label for kind in SERVERS}) == len(SERVERS)
    assert {kind.name for kind in SERVERS} == set(LANES)
    words = {kind.label: {line.name: skipped(kind, line) for line in LINES.values()} for kind in SERVERS}
    assert words["beanstalkd"]["fanout3"] == "a job goes to one tube and one worker"
    assert words["Redis Streams"]["delayed"] == "entries of a stream are there at once"
    assert words["PostgreSQL"] == dict.fromkeys(LINES)
    assert words[OURS]["fanout3"] and not words[OUR_LOG]["fanout3"]


def test_the_ratio_is_to_the_best_of_the_same_durability_and_the_worst_line_counts() -> None:
    rates_of = {"100B": {OURS: 90, SLOW: 10, FAST: 30, LAZY: 100}, "1kB": {OURS: 40, SLOW: 20, FAST: 10}}
    lines = [
        sample(label, f"mixed_b100_{body}", "life", per_s, repeat)
        for body, rates in rates_of.items()
        for label, per_s in rates.items()
        for repeat in range(3)
    ]
    found = figure(results(*lines), "peers.mixed_b100_vs_best")
    assert (found.value, found.holds) == (2.0, False)
    detail = found.detail["mixed_b100_100B"]
    assert isinstance(detail, dict) and (detail["best"], detail["ratios"]) == (FAST, [3.0, 3.0, 3.0])
    assert found.detail["mixed_b100_100B_less_durable_ahead"] == {LAZY: 100}
    assert ("mixed_b100_100B", "life", LAZY, pytest.approx(100 / 90)) in behind(results(*lines))
    assert {where[2] for where in behind(results(*lines))} == {LAZY}


def test_a_backlog_is_filled_and_drained_one_after_the_other_and_the_slower_kind_recovers() -> None:
    found = results(
        sample(OUR_LOG, "backlog", "fill", 300), sample(OUR_LOG, "backlog", "drain", 150),
        sample(FAST, "backlog", "fill", 100), sample(FAST, "backlog", "drain", 100),
        Sample(OURS, "backlog", "first", 0, 1, 2.5), Sample(OUR_LOG, "backlog", "first", 0, 1, 3.5),
        Sample(FAST, "backlog", "first", 0, 1, 0.5),
    )  # fmt: skip
    assert figure(found, "peers.backlog_1M_vs_best").value == 2.0
    recovery = figure(found, "peers.recovery_1M_s")
    assert (recovery.value, recovery.holds, recovery.detail["others_s"]) == (3.5, False, {FAST: 0.5})


def test_cpu_is_held_against_redis_alone() -> None:
    cpu_us = {OURS: 6.0, FAST: 4.0}
    found = results(*(sample(label, "mixed_b100_100B", "life", 9, server_us=each) for label, each in cpu_us.items()))
    assert figure(found, "peers.cpu_b100_vs_redis").value == 1.5


def test_what_could_not_be_measured_says_why() -> None:
    found = figure(results(**{FAST: "not installed"}), "peers.cpu_b100_vs_redis")
    assert found.value is None and not found.holds and "Redis Streams: not installed" in str(found.detail["reason"])


def test_messages_that_count_are_those_acked_by_every_group(tmp_path: Path) -> None:
    def told(*roles: tuple[str, int, tuple[str, ...]]) -> tuple[int, int]:
        jobs = [job(role, tmp_path, groups=groups) for role, _, groups in roles]
        return counted(jobs, [Report(0.0, 0.0, 1, messages) for _, messages, _ in roles])

    assert told(("put", 10, ()), ("put", 5, ())) == (15, 15)
    assert told(("put", 10, ()), ("get", 4, ()), ("get", 5, ())) == (10, 9)
    assert told(("put", 10, ("a", "b")), ("get", 10, ("a",)), ("get", 8, ("b",))) == (10, 9)
    assert told(("life", 7, ())) == (7, 7)
    assert told(("put", 10, ()), ("get", 0, ())) == (10, 0)


def test_consumers_wait_for_what_producers_said_in_the_end(tmp_path: Path) -> None:
    acked, puts = tmp_path / "acked", tmp_path / "puts"
    Tally.make(acked, 2)
    Tally.make(puts, 2)
    consumer, said = Work(job("get", acked, puts=str(puts), messages=0)), Tally(puts)
    said.done(0, 0)  # it put nothing, and is done
    assert said.all_done() is None and not consumer.got_all()
    said.done(1, 3)
    assert said.all_done() == 3 and not consumer.got_all()
    consumer.acked(1, [(b"", None)] * 3)
    assert consumer.got_all()


def test_bodies_go_round_and_differ(tmp_path: Path) -> None:
    Tally.make(tmp_path / "tally", 1)
    work = Work(job("put", tmp_path / "tally", incompressible=True, body_bytes=16_000, messages=2_003))
    batches = []
    while batch := work.next_batch():
        batches.append(batch)
    assert [len(batch) for batch in batches] == [10] * 200 + [3]
    assert {len(body) for batch in batches for body in batch} == {16_000}
    assert len({body for batch in batches for body in batch}) == len(bodies_of(work.job)) == 1_000
    assert Work(job("put", tmp_path / "tally", messages=15)).next_batch() == [b"x" * 100] * 10


def test_quantiles_are_of_what_was_seen() -> None:
    seen = [float(each) for each in range(1, 1001)]
    assert [quantile(seen, part) for part in (0.0, 0.5, 0.99, 0.999, 1.0)] == [1.0, 500.0, 990.0, 999.0, 1000.0]
    assert quantile([7.0], 0.999) == 7.0


def test_the_page_keeps_what_a_person_wrote_and_replaces_its_own_part(tmp_path: Path) -> None:
    page = tmp_path / "benchmarks.md"
    page.write_text(f"# Mine\n\n{BEGIN}\nof last year\n{END}\n\n## Also mine\n")
    rates = {OURS: 9_000, LAZY: 12_000}
    found = results(*(sample(label, "mixed_b100_100B", "life", rate, server_us=4.0) for label, rate in rates.items()))
    write(tmp_path, found, [figure(found, "peers.cpu_b100_vs_redis")])
    text = page.read_text()
    assert text.startswith("# Mine\n") and text.endswith("## Also mine\n") and "of last year" not in text
    assert "| NATS JetStream * | – | – | – | 12,000 |" in text
    assert "| mixed_b100_100B, life | NATS JetStream | 1.33 times | not synced |" in text
    assert sorted(each.name for each in (tmp_path / "benchmarks").iterdir()) == [
        "peers-cost.svg", "peers-mixed.svg", "peers.json",
    ]  # fmt: skip
    assert "(benchmarks/peers-mixed.svg)" in text and "peers-late" not in text
    assert placed(text, made(found, [])) == placed(placed(text, "x"), made(found, []))
    assert placed("# No marks\n", "x").endswith(f"{BEGIN}\n\nx\n\n{END}\n")


def test_plots_show_the_best_on_top_ours_marked_and_the_spread() -> None:
    drawn = picture([Panel("a < b", (Bar("x & y", 50, 25, 100, ours=True), Bar("z", 10, 10, 10, less_durable=True)))])
    assert "a &lt; b" in drawn and "x &amp; y" in drawn and 'width="115.0"' in drawn and "url(#less)" in drawn
    found = results(*(sample(label, "mixed_c1_100B", "life", rate) for label, rate in ((SLOW, 10), (OURS, 20))))
    svg = plots(found)["peers-mixed"]
    assert svg.index(OURS) < svg.index(SLOW)
    assert [short(each) for each in (1234567.0, 1234.0, 12.34, 0.0123)] == ["1,230,000", "1,230", "12.3", "0.0123"]
    assert [spread([]), spread([5.0]), spread([5.0, 7.0, 9.0])] == ["–", "5", "7 (5 to 9)"]


def test_a_page_is_for_the_comparison_only_and_must_be_there(tmp_path: Path) -> None:
    for arguments, words in (
        (["store", "--page", str(tmp_path)], "store has no page of its own"),
        (["peers", "--page", str(tmp_path)], "there is no benchmarks.md"),
    ):
        done = CliRunner().invoke(capellini, ["bench", *arguments])
        assert done.exit_code == 2 and words in done.output
