"""The guest agent of a lab node answers in the form of a real one."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.lab.api import Api, serving
from tests.lab.recorded.answers import ANSWERS


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """The API of a lab without an authority."""
    with serving(tmp_path_factory.mktemp("lab")) as served:
        yield served


@pytest.fixture(scope="module")
def on(api: Api) -> str:
    """A clone that runs."""
    return api.boot("node1", 11)


def form(value: Any) -> Any:
    """The keys and types of a value; of a list, the forms of its items."""
    if isinstance(value, dict):
        return {key: form(item) for key, item in value.items()}
    if isinstance(value, list):
        return sorted({repr(form(item)) for item in value})
    return type(value).__name__


def real(number: int) -> dict[str, Any]:
    found: dict[str, Any] = ANSWERS[number]["body"]["data"]
    return found


@pytest.mark.parametrize(
    ("number", "command"), [(335, "get-host-name"), (336, "network-get-interfaces"), (339, "get-time")]
)
def test_an_answer_of_the_agent_has_the_form_of_a_recorded_one(
    api: Api, on: str, number: int, command: str
) -> None:
    ours = api.get(f"{on}/agent/{command}").data

    assert form(by_name(ours)) == form(by_name(real(number)))


def by_name(answer: dict[str, Any]) -> dict[str, Any]:
    """An answer whose keys stand in one order, and whose interfaces have one kind of address each."""
    if not isinstance(answer["result"], list):
        return answer
    wanted = ("name", "hardware-address", "ip-addresses", "statistics")
    return {"result": [{key: nic[key] for key in wanted} for nic in map(ordered, answer["result"])]}


def ordered(nic: dict[str, Any]) -> dict[str, Any]:
    addresses = [dict(sorted(address.items())) for address in nic["ip-addresses"]]
    return {**nic, "ip-addresses": addresses, "statistics": dict(sorted(nic["statistics"].items()))}


def test_what_the_agent_tells_of_the_system_is_text(api: Api, on: str) -> None:
    ours, theirs = api.get(f"{on}/agent/get-osinfo").data["result"], real(334)["result"]

    assert {"id", "name", "pretty-name", "kernel-release", "machine"} <= ours.keys() & theirs.keys()
    assert {type(value) for value in ours.values()} == {str}


def test_what_the_agent_can_is_told_in_the_form_of_a_recorded_answer(api: Api, on: str) -> None:
    ours, theirs = api.get(f"{on}/agent/info").data["result"], real(333)["result"]

    assert ours.keys() == theirs.keys()
    assert {tuple(sorted(row)) for row in ours["supported_commands"]} == {
        tuple(sorted(row)) for row in theirs["supported_commands"]
    }
    assert {row["name"] for row in ours["supported_commands"]} <= {
        row["name"] for row in theirs["supported_commands"]
    }


def test_a_file_is_read_as_a_recorded_one_was(api: Api, on: str) -> None:
    found = api.get(f"{on}/agent/file-read", file="/etc/hostname")
    missing = api.get(f"{on}/agent/file-read", file="/nope")

    assert found.body == ANSWERS[346]["body"]
    assert (missing.status, missing.reason, missing.body) == (
        ANSWERS[347]["status"],
        ANSWERS[347]["reason"],
        ANSWERS[347]["body"],
    )
