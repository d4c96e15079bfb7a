"""Work that is done with a filled record, whose answer is the same however many nodes there are."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from inventory.listing import asked, chosen
from inventory.model import State
from inventory.store import Store
from tests.inventory.filled import (
    RARE,
    RARE_STATE,
    address,
    host_key,
    machine_id,
    name_of,
    site_of,
    uuid,
    vmid,
)

_LISTED = 20
_REPORT = {"name": "gpu-01", "ok": True, "verification": {"ranks": 8, "time_line": []}}
_MOVES = (State.VERIFY_FAILED, State.VERIFYING, State.IN_SERVICE)  # around, to where it was


@dataclass(frozen=True, slots=True)
class Filled:
    """A record with so many nodes, opened."""

    url: str
    store: Store
    count: int
    numbers: "itertools.cycle[int]"

    def one(self) -> str:
        """A node, another one each time; not one of the rare ones."""
        return name_of(next(self.numbers))


Work = Callable[[Filled], object]


def opened(url: str, count: int) -> Filled:
    """The record at `url`, which was filled with so many."""
    apart = count // RARE
    numbers = (number * 7919 % count for number in range(20 * RARE))  # by a prime: they lie apart
    common = [number for number in numbers if number % apart != apart // 2]
    return Filled(url, Store.open(url), count, itertools.cycle(common))


def opening(filled: Filled) -> None:
    """The record opened anew, as each command does."""
    Store.open(filled.url)


def listing(filled: Filled) -> None:
    """A node set."""
    first = next(filled.numbers) % (filled.count - _LISTED)
    _count(filled, [name_of(first + number) for number in range(_LISTED)], expected=_LISTED)


def by_state(filled: Filled) -> None:
    """Those that failed."""
    _count(filled, states=[RARE_STATE])


def by_states(filled: Filled) -> None:
    """Those of several states, most of which nobody is in."""
    _count(filled, states=[state for state in State if state is not State.IN_SERVICE])


def by_turn(filled: Filled) -> None:
    """Those where the holder acts."""
    _count(filled, turn="security")


def by_expiry(filled: Filled) -> None:
    """Those whose certificate ends within two weeks."""
    _count(filled, expiring="14d")


def by_expiry_and_state(filled: Filled) -> None:
    """The same, of the states that nearly all and those very nodes are in."""
    _count(filled, expiring="14d", states=[State.IN_SERVICE, RARE_STATE])


def first_page(filled: Filled) -> None:
    """The beginning of the whole list, as in `node-inventory list | head`."""
    list(itertools.islice(filled.store.summaries(), RARE))


def first_page_of_state(filled: Filled) -> None:
    """The beginning of those in the state that nearly all are in."""
    list(itertools.islice(filled.store.summaries(states=[State.IN_SERVICE]), RARE))


def moving(filled: Filled) -> None:
    """Three moves of one node, to where it was."""
    node = filled.store.get(filled.one())
    for state in _MOVES:
        assert node is not None
        node = filled.store.save(replace(node, state=state), why=f"it became {state}")


def leasing(filled: Filled) -> None:
    """A lease, taken and let go."""
    with filled.store.lease(filled.one(), "bench", say=print):
        pass


def twin(filled: Filled) -> None:
    """Another node with a host key, or a machine-id."""
    number = next(filled.numbers)
    found = filled.store.find_machine(
        host_keys=[host_key(number)], machine_id=machine_id(number), other_than_uuid="none"
    )
    assert found is not None
    assert found.name == name_of(number)


def claimed(filled: Filled) -> None:
    """Whose a uuid, a VM id and an address are."""
    by_uuid, by_vmid, by_ip = (next(filled.numbers) for _ in range(3))
    site = site_of(by_ip)
    found = filled.store.claimants(uuid=uuid(by_uuid), vmid=vmid(by_vmid), ips=[address(by_ip)], site=site)
    assert {node.name for node in found} == {name_of(number) for number in (by_uuid, by_vmid, by_ip)}


def keeping(filled: Filled) -> None:
    """A verification kept."""
    filled.store.keep_report(filled.one(), _REPORT, passed=True)


def last_reports(filled: Filled) -> None:
    """The last verifications of a node set."""
    names = [filled.one() for _ in range(_LISTED)]
    assert len(list(filled.store.last_reports(names=names))) == len(set(names))


def _count(filled: Filled, names: list[str] | None = None, expected: int = RARE, **wanted: object) -> None:
    told: dict[str, object] = {"states": None, "turn": None, "expiring": None, **wanted}
    which = asked(names, now=datetime.now(UTC), **told)  # type: ignore[arg-type]  # as by_* give them
    found = chosen(filled.store, which)
    assert sum(1 for _ in found) == expected, (told, expected)


SAME: dict[str, Work] = {
    "open": opening,
    "show one": lambda filled: filled.store.get(filled.one()),
    "history of one": lambda filled: filled.store.history(filled.one()),
    "receipts of one": lambda filled: filled.store.receipts(filled.one()),
    f"list {_LISTED} by name": listing,
    f"list --state, {RARE} in it": by_state,
    f"list --state, all but one, {RARE} in them": by_states,
    f"list --expiring, {RARE} of them": by_expiry,
    f"list --expiring --state, {RARE} of them": by_expiry_and_state,
    f"list --next security, {RARE} of them": by_turn,
    "list, its first page": first_page,
    "list --state, first page of most": first_page_of_state,
    "three moves of state": moving,
    "a lease, taken and let go": leasing,
    "find a machine's twin": twin,
    "whose uuid, VM id and address": claimed,
    "keep a report": keeping,
    f"last reports of {_LISTED}": last_reports,
}
