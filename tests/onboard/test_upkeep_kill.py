"""Renewing and refreshing, killed anywhere: the same command again ends well, and the node always serves."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

import pytest

from ca.record import Standing
from inventory.errors import OtherSide
from tests.onboard.killing_upkeep import DEEDS, Killing, killing_upkeep
from tests.onboard.kit import Bench, bench, openssl
from tests.onboard.node import Node, Step, node
from tests.onboard.upkeep_kit import onboarded, with_lists

WHOLE = os.environ.get("MUSTER_KILL_MATRIX") == "whole"
"""Every step; else every twentieth of the node's, and those that move what is in force, and every fourth of ours."""
_ALWAYS = "mv -T"


@dataclass(slots=True)
class Place:
    """All that the cases share."""

    holder: Bench
    there: Node
    killing: Killing

    def look(self) -> str:
        """What holds at any instant; then the state of things in a few words."""
        now = datetime.now(UTC)
        for folder in self.holder.install_dir.glob("generations/*"):
            key, chain = folder / "key.pem", folder / "chain.pem"
            if chain.exists() and key.exists():
                assert openssl("x509", "-in", chain, "-noout", "-pubkey") == openssl(
                    "pkey", "-in", key, "-pubout"
                )
        chain, bundle = (self.holder.current(name) for name in ("chain.pem", "bundle.pem"))
        assert "OK" in openssl("verify", "-CAfile", bundle, "-untrusted", chain, chain)
        shown = openssl("x509", "-in", chain, "-noout", "-fingerprint", "-sha256")
        fingerprint = shown.strip().partition("=")[2].replace(":", "").lower()
        live = [one for one in self.holder.authority().records("gpu-01") if one.live(now)]
        assert fingerprint in {one.fingerprint_sha256 for one in live}, "it serves what is not to be trusted"
        return ", ".join(str(one.standing) for one in live)

    def end(self, deed: str, before: str) -> None:
        """The same command again, and what must hold then."""
        self.there.forget()
        DEEDS[deed]("gpu-01", self.holder.desk())
        assert self.look() == "installed"
        assert self.holder.authority().open_intents == ()
        (record,) = [one for one in self.holder.authority().records("gpu-01") if one.live(datetime.now(UTC))]
        assert (record.serial == before) is (deed == "refresh")
        found = self.holder.store().get("gpu-01")
        assert found is not None
        assert record.serial in (found.receipt or "")
        assert record.serial in (self.holder.folder / "ca/receipts/gpu-01.receipt").read_text()
        assert len(list(self.holder.install_dir.glob("generations/*"))) <= 2
        assert not [*self.holder.install_dir.rglob("*.new"), *self.holder.install_dir.rglob("pending")]
        assert self.holder.authority().holding_older_crl(datetime.now(UTC)) == ()
        assert {one.standing for one in self.holder.authority().records("gpu-01")} <= {
            Standing.INSTALLED,
            Standing.REVOKED,
            Standing.FAILED,
        }

    def begin(self, deed: str) -> str:
        """What there is to be done; the serial number of the certificate in force."""
        if deed == "refresh":
            with_lists(self.holder)
        (record,) = [one for one in self.holder.authority().records("gpu-01") if one.live(datetime.now(UTC))]
        return record.serial


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("kill")
    with node(folder / "sshd") as there, killing_upkeep() as program:
        holder = bench(folder, there.server)
        with_lists(holder)
        onboarded(holder)
        yield Place(holder, there, program)


@pytest.mark.parametrize("deed", list(DEEDS))
def test_our_side_of_upkeep_may_be_killed_anywhere(place: Place, deed: str) -> None:
    before = place.begin(deed)
    place.there.forget()
    status, names = place.killing.do(deed, place.holder, kill_at=0)
    assert status == 0
    assert {"logged in", "command run", "audit written", "record moved"} <= set(names)
    for at in range(1, len(names) + 1, 1 if WHOLE else 4):
        before = place.begin(deed)
        place.there.forget()
        killed, _ = place.killing.do(deed, place.holder, kill_at=at)
        assert killed == -9
        place.there.quiet()
        place.look()
        place.end(deed, before)


@pytest.mark.parametrize("deed", list(DEEDS))
def test_the_nodes_side_of_upkeep_may_be_cut_off_anywhere(place: Place, deed: str) -> None:
    place.begin(deed)
    place.there.step()
    DEEDS[deed]("gpu-01", place.holder.desk())
    steps = [step for step in place.there.steps if step.run > 1 and _chosen(step)]
    assert steps
    for step in steps:
        before = place.begin(deed)
        place.there.step("shell", step)
        with pytest.raises(OtherSide):
            DEEDS[deed]("gpu-01", place.holder.desk())
        place.there.quiet()
        place.look()
        place.end(deed, before)


def _chosen(step: Step) -> bool:
    return WHOLE or step.at % 20 == 1 or step.command.startswith(_ALWAYS)
