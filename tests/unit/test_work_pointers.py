"""The list of buckets: whatever is told in whatever order, no bucket with messages is ever forgotten."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from capellini.queues.work import pointers as pointing
from capellini.queues.work.pointers import DONE, DROPPED, ENDED, GAPS, OPEN, OVER, Listed, Pointers

LAST = 6
NOW_MS = 1_000
buckets = st.integers(0, LAST)
times = st.sampled_from((0, 500, 1_000, 1_500, 1 << 62))
tellings = st.one_of(
    st.tuples(st.just("announced"), buckets, times),
    st.tuples(st.just("seen"), buckets, st.sampled_from((OPEN, OVER, GAPS, DONE)), times),
    st.tuples(st.just("removed"), buckets),
    st.tuples(st.just("reopened"), buckets, times),
    st.tuples(st.just("back_to"), buckets),
)
stories = st.lists(tellings, max_size=30)


def told(pointers: Pointers, telling: tuple[object, ...]) -> Pointers:
    match telling:
        case ("announced", int(bucket), int(at_ms)):
            return pointing.announced(pointers, bucket, at_ms)
        case ("seen", int(bucket), int(kind), int(at_ms)):
            return pointing.seen(pointers, bucket, kind, at_ms, NOW_MS)
        case ("removed", int(bucket)):
            return pointing.removed(pointers, bucket)
        case ("reopened", int(bucket), int(at_ms)):
            return pointing.reopened(pointers, bucket, at_ms)
        case ("back_to", int(bucket)):
            return pointing.back_to(pointers, bucket)
    raise AssertionError(telling)


@given(stories)
def test_what_was_not_ended_stays_findable(story: list[tuple[object, ...]]) -> None:
    pointers = Pointers()
    ended: set[int] = set()  # buckets that somebody called done or dropped
    for telling in story:
        before, pointers = pointers, told(pointers, telling)
        if telling[0] == "removed" or (telling[0] == "seen" and telling[2] == DONE):
            ended.add(int(str(telling[1])))
        assert pointers.reader >= before.reader, "the reader never goes back"
        for bucket in range(LAST + 1):
            if bucket not in ended:
                assert bucket >= pointers.reader or bucket in pointers.listed
            entry = pointers.listed.get(bucket)
            if entry is not None and bucket < pointers.reader:
                assert entry.kind != OPEN, "below the reader only its time finds a bucket"
        first = pointers.listed.get(pointers.reader)
        assert first is None or first.kind == OPEN, "the reader stands on a bucket that may hold fresh messages"


@given(stories)
def test_encoded_and_decoded_the_list_is_the_same(story: list[tuple[object, ...]]) -> None:
    pointers = Pointers()
    for telling in story:
        pointers = told(pointers, telling)
    assert pointing.decode(pointing.encode(pointers)) == pointers
    assert pointing.decode(None) == pointing.decode(b"") == Pointers()


@given(stories, buckets, times)
def test_announcing_never_makes_a_time_later(story: list[tuple[object, ...]], bucket: int, at_ms: int) -> None:
    pointers = Pointers()
    for telling in story:
        pointers = told(pointers, telling)
    after = pointing.announced(pointers, bucket, at_ms)
    if pointing.gone(pointers, bucket):
        assert after is pointers
        return
    entry = pointers.listed.get(bucket)
    if entry is not None and entry.kind in ENDED:
        assert after is pointers
    else:
        assert after.listed[bucket].at_ms <= at_ms
        assert entry is None or after.listed[bucket].at_ms <= entry.at_ms
    others = {at: one for at, one in pointers.listed.items() if at != bucket}
    assert others.items() <= after.listed.items()


def test_an_ended_bucket_is_not_made_anything_else_by_a_late_look() -> None:
    pointers = Pointers(0, {0: Listed(DONE, 0), 1: Listed(OPEN, 5)})
    assert pointing.seen(pointers, 0, GAPS, 7, NOW_MS) is pointers
    assert pointing.reopened(pointers, 0, 7).listed[0].kind == GAPS
    assert pointing.reopened(pointers, 1, 7) is pointers


def test_a_bucket_dropped_ahead_of_the_reader_is_passed_when_the_reader_comes() -> None:
    pointers = pointing.removed(Pointers(), 1)
    assert pointers.reader == 0 and pointers.listed[1].kind == DROPPED
    pointers = pointing.seen(pointers, 0, DONE, 0, NOW_MS)
    assert pointers.reader == 2 and 1 not in pointers.listed
    assert pointing.removed(pointers, 0) == Pointers(2, {})


def test_the_three_pointers_are_read_off_the_list() -> None:
    listed = {2: Listed(DONE, 0), 3: Listed(OVER, 9), 5: Listed(OPEN, 9), 8: Listed(DROPPED, 0)}
    pointers = Pointers(5, listed)
    assert (pointers.repair, pointers.invisibility, pointers.reader) == (2, 3, 5)
    assert (Pointers(4, {}).repair, Pointers(4, {}).invisibility) == (4, None)
