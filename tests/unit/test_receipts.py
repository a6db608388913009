"""Receipts: what goes in comes out, and whatever was altered is refused or proves nothing."""

from __future__ import annotations

import struct
from base64 import urlsafe_b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capellini.model.errors import Invalid
from capellini.model.receipts import CODE_BYTES, code_of, parse_receipt, receipts_of

SECRET = b"s" * 16
parcels = st.tuples(
    st.integers(1, 2**32 - 1), st.integers(0, 2**63), st.integers(1, 30), st.integers(1, 2**32 - 1)
)  # generation, first, count, version


@given(parcels)
def test_each_message_of_a_parcel_has_a_receipt_that_names_it(parcel: tuple[int, int, int, int]) -> None:
    generation, first, count, version = parcel
    code = code_of(SECRET, *parcel)
    texts = receipts_of(generation, first, count, version, code)
    assert len(set(texts)) == count
    for index, text in enumerate(texts):
        receipt = parse_receipt(text)
        assert receipt.id == first + index
        assert (receipt.generation, receipt.first, receipt.count, receipt.version) == parcel
        assert receipt.code == code and len(code) == CODE_BYTES


@given(parcels, st.binary(min_size=1, max_size=32).filter(lambda secret: secret != SECRET))
def test_another_secret_makes_another_code(parcel: tuple[int, int, int, int], secret: bytes) -> None:
    assert code_of(SECRET, *parcel) != code_of(secret, *parcel)


@given(parcels, st.integers(0, 3), st.integers(1, 5))
def test_whatever_is_altered_makes_another_code(parcel: tuple[int, int, int, int], at: int, by: int) -> None:
    altered = list(parcel)
    altered[at] = altered[at] - by if altered[at] > by else altered[at] + by
    assert code_of(SECRET, *parcel) != code_of(SECRET, altered[0], altered[1], altered[2], altered[3])


@given(st.text(max_size=60))
def test_whatever_is_no_receipt_is_refused_in_words(text: str) -> None:
    try:
        receipt = parse_receipt(text)
    except Invalid:
        assert text != receipts_of(1, 0, 1, 1, bytes(CODE_BYTES))[0]
    else:  # the right length and alphabet: then the code decides, which only the queue can make
        assert receipt.index < receipt.count


@pytest.mark.parametrize(("count", "index"), [(2, 2), (2, 3), (0, 0)])
def test_a_place_outside_of_the_parcel_is_refused(count: int, index: int) -> None:
    raw = struct.pack(">IQHHI8s", 1, 0, count, index, 1, b"c" * 8)
    with pytest.raises(Invalid):
        parse_receipt(urlsafe_b64encode(raw)[:38].decode())


@pytest.mark.parametrize("text", ["", "x" * 37, "x" * 39, "é" * 38, " " * 38, "=" * 38])
def test_texts_of_another_length_or_alphabet_are_refused(text: str) -> None:
    with pytest.raises(Invalid):
        parse_receipt(text)
