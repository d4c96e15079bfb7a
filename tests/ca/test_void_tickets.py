"""A ticket that was issued in another's place makes it void, once the authority has seen it."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from ca.authority import Authority
from inventory.errors import Refused
from tests.ca.material import NOW, OTHER_UUID, UUID, issue, new_authority, reopened


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return new_authority(tmp_path)


def use(
    authority: Authority,
    ticket: str,
    *,
    supersedes: Sequence[str] = (),
    key: str = "00",
    node: str = "gpu-01",
) -> None:
    authority.use_ticket(
        ticket,
        node=node,
        vm_uuid=UUID if node == "gpu-01" else OTHER_UUID,
        node_key_sha256=key * 32,
        actor="tester",
        now=NOW,
        supersedes=supersedes,
    )


def test_a_void_ticket_is_refused_also_when_the_index_was_made_anew(authority: Authority) -> None:
    use(authority, "t2", supersedes=("t1", "t0"))

    for again in (authority, reopened(authority)):
        for former in ("t1", "t0"):
            with pytest.raises(Refused, match="ticket t2 was issued in its place"):
                use(again, former, key="11")
            with pytest.raises(Refused, match="ticket t2"):
                again.refuse_void(former, node="gpu-01")
    authority.layout.index.unlink(missing_ok=True)
    with pytest.raises(Refused, match="ticket t2"):
        use(reopened(authority), "t1")


def test_a_ticket_that_was_used_before_it_became_void_does_not_go_on(authority: Authority) -> None:
    use(authority, "t1")
    use(authority, "t1")
    use(authority, "t2", supersedes=("t1",), key="11")

    with pytest.raises(Refused, match="ticket t2"):
        use(authority, "t1")
    use(authority, "t2", supersedes=("t1",), key="11")


def test_nothing_is_issued_for_a_void_ticket(authority: Authority) -> None:
    use(authority, "t2", supersedes=("t1",))
    with pytest.raises(Refused, match="ticket t2"):
        issue(authority, ticket_id="t1")

    assert authority.open_intents == ()


def test_a_ticket_of_another_node_makes_nothing_void(authority: Authority) -> None:
    use(authority, "t9", supersedes=("t1",), key="22", node="gpu-02")
    use(authority, "t1")

    use(authority, "t2", supersedes=("t1",), key="11")
    with pytest.raises(Refused, match="ticket t2"):
        authority.refuse_void("t1", node="gpu-01")
