"""Waits: bounded, as long as a person says, and telling what they saw when they give up."""

import time

import pytest

from inventory.model import State
from provision import guest
from tests.provision.kit import Agent, Place, state

IPV6_ONLY = [
    {
        "name": "eth0",
        "hardware-address": "bc:24:11:f8:48:89",
        "ip-addresses": [{"ip-address": "2001:db8::5", "ip-address-type": "ipv6", "prefix": 64}],
    }
]


def test_the_wait_for_the_agent_is_as_long_as_a_person_says(place: Place) -> None:
    place.pve.vms.agent_for = lambda _vm: None
    began = time.monotonic()

    done = place.run("gpu-01", "--yes", "--wait", "1")

    assert done.returncode == 4
    assert time.monotonic() - began < 20
    assert "waiting for guest agent and address of VM 100 (at most 1 s)" in done.stderr
    assert "VM 100 did not tell its address in 1 s" in done.stderr
    assert "is it installed and enabled in the template?" in done.stderr
    assert state(place) is State.PROVISION_FAILED


@pytest.mark.parametrize("seconds", ["0", "-1", "soon"])
def test_a_wait_of_no_time_is_wrong_usage(place: Place, seconds: str) -> None:
    assert place.run("gpu-01", "--yes", "--wait", seconds).returncode == 2


def test_what_was_seen_is_told_when_no_address_serves(place: Place) -> None:
    def only_link_local(vm: object) -> Agent:
        agent = place.new_agent(vm)
        place.address = "169.254.7.7"
        return agent

    place.pve.vms.agent_for = only_link_local

    done = place.run("gpu-01", "--yes", "--wait", "1")

    assert done.returncode == 4
    assert "no IPv4 address on " in done.stderr
    assert "eth0 (" in done.stderr
    assert "fe80::1, 169.254.7.7" in done.stderr


def test_an_address_of_the_other_family_that_is_there_sooner_is_not_taken() -> None:
    mac = "BC:24:11:F8:48:89"

    assert guest.management_address(IPV6_ONLY, mac, wanted=None, family=4) is None
    assert guest.management_address(IPV6_ONLY, mac, wanted=None, family=6) == guest.Seen("2001:db8::5", 64)
    assert guest.management_address(IPV6_ONLY, mac, wanted="2001:db8::5", family=4) is not None


def test_a_later_run_goes_on_with_what_came_up_meanwhile(place: Place) -> None:
    place.pve.vms.agent_for = lambda _vm: None
    place.run("gpu-01", "--yes", "--wait", "1")
    place.pve.vm(100).agent = place.new_agent(place.pve.vm(100))
    before = len(place.requests.writes)

    done = place.run("gpu-01", "--yes")

    assert done.returncode == 0, done.stderr
    assert len(place.requests.writes) == before
