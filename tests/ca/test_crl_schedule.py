"""When which revocation list is due, and how long a certificate stays on them."""

import itertools
from datetime import datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ca.crl import MAX_LISTS, Former, Slot, due_slot, entries, schedule
from inventory.errors import BadInput, Refused
from tests.ca.material import NOW
from tests.ca.test_crl import BACKDATE, DAY, PAIR, revoked


def slots(
    *,
    days: int = 30,
    months: int | None = 6,
    now: datetime = NOW,
    first: int = 1,
    not_before: datetime | None = None,
) -> tuple[Slot, ...]:
    until = None if months is None else now + months * 30 * DAY
    return schedule(
        PAIR.issuing,
        first_number=first,
        now=now,
        backdate=BACKDATE,
        days=days,
        until=until,
        not_before=not_before,
    )


@given(days=st.integers(1, 366), months=st.integers(1, 12), start=st.integers(0, 1000))
@settings(max_examples=200, deadline=None)
def test_a_set_leaves_no_moment_uncovered(days: int, months: int, start: int) -> None:
    now, end = NOW + start * DAY, PAIR.issuing.not_valid_after_utc
    try:
        made = slots(days=days, months=months, now=now, first=5)
    except BadInput:
        assert days < 366 * 5 // (4 * MAX_LISTS) + 1
        return

    assert [slot.number for slot in made] == [*range(5, 5 + len(made))]
    assert made[0].due == now
    assert made[-1].next_update >= min(now + months * 30 * DAY, end)
    for slot, following in itertools.pairwise(made):
        # A fifth of a list's life remains to bring its successor to every node.
        assert slot.next_update - following.due >= days * DAY / 5 or slot.next_update == end
        assert slot.this_update < following.this_update
    for slot in made:
        assert slot.this_update <= slot.due < slot.next_update <= end
        assert slot.due - slot.this_update == BACKDATE


def test_one_list_is_made_where_none_are_wanted_ahead() -> None:
    assert slots(months=None) == (Slot(1, NOW, NOW - BACKDATE, NOW + 30 * DAY),)


def test_this_update_never_goes_back_behind_the_list_before() -> None:
    assert slots(months=None, not_before=NOW - timedelta(seconds=1))[0].this_update == NOW - timedelta(
        seconds=1
    )
    assert slots(months=None, not_before=NOW + timedelta(minutes=5))[0].this_update == NOW


@pytest.mark.parametrize("days", [0, -1, 367])
def test_a_list_lives_for_a_day_to_a_year(days: int) -> None:
    with pytest.raises(BadInput, match="1 to 366 days"):
        slots(days=days)


def test_more_lists_than_anybody_keeps_are_refused() -> None:
    with pytest.raises(BadInput, match="more than 100 lists"):
        slots(days=1, months=12)


def test_an_authority_that_has_ended_signs_no_list() -> None:
    with pytest.raises(Refused, match="has expired"):
        slots(now=PAIR.issuing.not_valid_after_utc)


def test_the_newest_list_that_is_due_is_the_one() -> None:
    made = slots()

    assert due_slot(made, NOW - DAY) is None
    assert due_slot(made, NOW) == made[0]
    assert due_slot(made, made[1].due - timedelta(seconds=1)) == made[0]
    assert due_slot(made, made[1].due) == made[1]
    assert due_slot(made, NOW + 4000 * DAY) == made[-1]


def test_an_entry_is_dropped_once_it_was_on_a_list_from_beyond_the_certificates_end() -> None:
    one = revoked(ends=NOW)

    def stays(former: Former | None) -> bool:
        return [*entries([one], former)] == [one]

    assert stays(None)
    assert stays(Former(NOW, NOW))
    assert not stays(Former(NOW + timedelta(seconds=1), NOW))
    assert stays(Former(NOW + DAY, one.revoked_at))  # it was revoked when that list was signed, or after
