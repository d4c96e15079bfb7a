"""A run that dies at any request, before it is sent or after it was answered: the same command finishes it."""

from collections.abc import Callable
from typing import Any

import pytest

from inventory.model import State
from provision.proxmox import Proxmox
from provision.retire import Retiring
from provision.road import Road
from provision.rollback import Rollback
from provision.spec import load_site
from tests.provision.kit import Place, make
from tests.provision.leaving import record
from tests.provision.test_resume import Dies

MOST = 60  # requests that one step of the road may take at most


class DiesAt(Proxmox):
    """The adapter of a process that dies at its nth request."""

    def __init__(self, inner: Proxmox, number: int, *, after: bool) -> None:
        self.__dict__.update(inner.__dict__)
        self._left, self._after = number, after

    def _call(self, method: str, path: tuple[str | int, ...], **params: Any) -> Any:
        self._left -= 1
        if self._left < 0 and not self._after:
            raise KeyboardInterrupt
        answer = super()._call(method, path, **params)
        if self._left < 0:
            raise KeyboardInterrupt
        return answer


def every_death(
    place: Place, *, after: bool, begin: Callable[[str], None], go: Callable[[Road, str], None]
) -> int:
    """`go` over a new node for each request that it makes, dying there, and once more; how often it died."""
    for number in range(MOST):
        name = f"n{number:02}"
        begin(name)
        dying = place.road(adapter=lambda inner, at=number: DiesAt(inner, at, after=after))  # type: ignore[misc]  # a default
        try:
            go(dying, name)
        except KeyboardInterrupt:
            go(place.road(), name)
        else:
            return number
    raise AssertionError("it never came to its end")


def vms_called(place: Place, name: str) -> list[Any]:
    return [vm for vm in place.pve.vms if vm.config.get("name") == name]


def nothing(_name: str) -> None:
    pass


both = pytest.mark.parametrize("after", [False, True], ids=["before", "after"])


@both
def test_a_making_that_dies_anywhere_is_finished_with_one_vm(place: Place, *, after: bool) -> None:
    place.write_site(profile_disk_gib="12")

    def go(road: Road, name: str) -> None:
        make(road, name)
        assert record(place, name).state is State.AWAITING_IDENTITY

    died = every_death(place, after=after, begin=nothing, go=go)

    assert died > 15
    for number in range(died):
        (vm,) = vms_called(place, f"n{number:02}")
        assert vm.vmid == record(place, f"n{number:02}").vmid


@both
def test_a_retirement_that_dies_anywhere_is_finished(place: Place, *, after: bool) -> None:
    def begin(name: str) -> None:
        make(place.road(), name)

    def go(road: Road, name: str) -> None:
        retiring = Retiring(load_site(place.site_file), place.store, road._tools)  # noqa: SLF001 - the kit's tools
        parting = retiring.look(name, orphan=False)
        assert parting is not None
        retiring.carry_out(parting)

    died = every_death(place, after=after, begin=begin, go=go)

    assert died > 8
    for number in range(died):
        assert record(place, f"n{number:02}").state is State.RETIRED
        assert vms_called(place, f"n{number:02}") == []


@both
def test_a_rollback_that_dies_anywhere_is_finished(place: Place, *, after: bool) -> None:
    def begin(name: str) -> None:
        with pytest.raises(KeyboardInterrupt):
            make(place.road(adapter=lambda inner: Dies(inner, at="start", after=True)), name)

    def go(road: Road, name: str) -> None:
        rollback = Rollback(place.store, road._tools)  # noqa: SLF001 - the kit's tools
        node = rollback.look(name)
        assert node is not None
        rollback.carry_out(node)

    died = every_death(place, after=after, begin=begin, go=go)

    assert died > 8
    for number in range(died):
        assert record(place, f"n{number:02}").vmid is None
        assert vms_called(place, f"n{number:02}") == []
