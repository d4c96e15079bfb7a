"""A node that cannot take its identity has afterwards what it had before, and the ledger knows."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from ca.record import Standing
from inventory.errors import OtherSide, Refused
from inventory.model import State
from onboard.enroll import RolledBack
from onboard.service import onboard
from tests.onboard.kit import Bench, bench, openssl
from tests.onboard.node import Node, node, tools
from tests.require import need, need_root


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with node(tmp_path_factory.mktemp("failures") / "node") as running:
        yield running


@pytest.fixture
def holder(tmp_path: Path, there: Node) -> Bench:
    there.forget()
    return bench(tmp_path, there.server)


def test_a_full_disk_leaves_the_former_identity_in_force_and_no_new_key(holder: Bench) -> None:
    with _disk(holder.install_dir, "size=256k,nr_inodes=1k") as disk:
        onboard(holder.signed(id="aa00"), holder.desk())
        former = holder.current("chain.pem").read_bytes()
        ends = set()
        for left in (0, 2, 3, 6, 20):
            ballast = disk / "ballast"
            with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as full:
                while True:
                    full.write(b"x" * 4096)
            os.truncate(ballast, (ballast.stat().st_size // 4096 - left) * 4096)
            try:
                onboard(holder.signed(id=f"bb{left:02x}"), holder.desk())
            except OtherSide as error:
                ends.add((error.why or "").partition(":")[0])
            else:
                break
            assert holder.current("chain.pem").read_bytes() == former
            _in_force(holder)
            assert [folder.name for folder in disk.glob("generations/*")] == ["1"]
            assert _standings(holder) <= {Standing.INSTALLED, Standing.REVOKED, Standing.FAILED}
            ballast.unlink()

    assert left == 20
    assert "write" in ends


def test_a_disk_that_is_read_only_gets_no_key_and_nothing_is_signed(holder: Bench) -> None:
    with _disk(holder.install_dir, "size=64k,ro"), pytest.raises(OtherSide, match="made no key"):
        onboard(holder.signed(), holder.desk())

    _nothing_of(holder)
    assert holder.authority().records() == ()


def test_a_node_without_openssl_is_refused(holder: Bench, there: Node, tmp_path: Path) -> None:
    there.path(tools(tmp_path / "bin", "openssl"))
    with pytest.raises(Refused, match="lacks openssl"):
        onboard(holder.signed(), holder.desk())

    _nothing_of(holder)


def test_a_node_whose_clock_is_wrong_is_refused_before_anything_is_signed(
    holder: Bench, there: Node, tmp_path: Path
) -> None:
    _replace(there, tmp_path, "date", "exec /usr/bin/date -d '2 hours ago' \"$@\"")
    with pytest.raises(Refused, match=r"1:59:\d\d behind|2:00:\d\d behind"):
        onboard(holder.signed(), holder.desk())

    _nothing_of(holder)
    assert holder.agreed == []


def test_a_chain_that_the_nodes_own_openssl_and_clock_refuse_is_rolled_back(
    holder: Bench, there: Node, tmp_path: Path
) -> None:
    late = (
        '[ "$1" != verify ] || { shift; set -- verify -attime 4000000000 "$@"; }\nexec /usr/bin/openssl "$@"'
    )
    _replace(there, tmp_path, "openssl", late)
    with pytest.raises(RolledBack, match=r"chain: .*expired"):
        onboard(holder.signed(), holder.desk())

    _nothing_of(holder)
    assert _standings(holder) == {Standing.REVOKED}


def test_a_folder_where_the_link_should_be_stays_as_it_is(holder: Bench) -> None:
    others = holder.install_dir / "current" / "theirs"
    others.parent.mkdir(parents=True)
    others.write_text("x")
    with pytest.raises(RolledBack, match="swap"):
        onboard(holder.signed(), holder.desk())

    assert others.read_text() == "x"
    assert not list(holder.install_dir.rglob("*.pem"))
    assert _standings(holder) == {Standing.REVOKED}


def test_a_link_in_place_of_the_generations_leads_us_nowhere(holder: Bench, tmp_path: Path) -> None:
    theirs = tmp_path / "theirs" / "1"
    theirs.mkdir(parents=True)
    holder.install_dir.mkdir()
    (holder.install_dir / "generations").symlink_to(theirs.parent)
    with pytest.raises(OtherSide, match="symbolic link"):
        onboard(holder.signed(), holder.desk())

    assert list(theirs.parent.rglob("*")) == [theirs]
    assert holder.authority().records() == ()


def test_others_who_swapped_the_link_meanwhile_keep_their_link(holder: Bench) -> None:
    swap = f"ln -sfn /elsewhere {holder.install_dir}/current; exit 1"
    install = holder.install(reload_command=f"'{swap}'")
    holder.set_policy(install=install)
    with pytest.raises(RolledBack, match="reload_command"):
        onboard(holder.signed(), holder.desk())

    assert holder.current(".").readlink() == Path("/elsewhere")
    assert not list(holder.install_dir.glob("generations/*"))


def test_a_command_of_the_policy_that_never_ends_is_ended(holder: Bench, there: Node, tmp_path: Path) -> None:
    _replace(there, tmp_path, "timeout", 'shift 3; exec /usr/bin/timeout -k 1 1 "$@"')  # they get 40 s each
    holder.set_policy(install=holder.install(check_command="sleep 600"))
    with pytest.raises(RolledBack, match="check_command: no word, status 124"):
        onboard(holder.signed(), holder.desk())


def test_a_certificate_whose_key_was_lost_is_revoked_and_takes_a_new_ticket(
    holder: Bench, there: Node
) -> None:
    there.step()
    onboard(holder.signed(id="aa00"), holder.desk())
    text = holder.signed(id="aa01")
    swap = next(step for step in there.steps if step.command.startswith("ln -s"))
    there.step("shell", swap)
    with pytest.raises(OtherSide):
        onboard(text, holder.desk())
    there.forget()
    for file in holder.install_dir.glob("generations/*/ticket"):
        if file.read_text().strip() == "aa01":
            (file.parent / "key.pem").unlink()

    with pytest.raises(Refused, match="the key is gone from the node"):
        onboard(text, holder.desk())
    standings = {record.ticket_id: record.standing for record in holder.authority().records()}
    assert standings == {"aa00": Standing.INSTALLED, "aa01": Standing.REVOKED}
    node = holder.store().get("gpu-01")
    assert node is not None
    assert node.state is State.ONBOARD_FAILED
    assert onboard(holder.signed(id="aa02"), holder.desk()).changed
    assert len(list(holder.install_dir.glob("generations/*"))) == 2


@contextmanager
def _disk(folder: Path, options: str) -> Iterator[Path]:
    need_root()
    folder.mkdir(exist_ok=True)
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "none", folder], capture_output=True, timeout=600, check=False
    )
    need(done.returncode == 0, "the right to mount a tmpfs", "run the tests as root with CAP_SYS_ADMIN")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True, timeout=600)


def _replace(there: Node, folder: Path, name: str, script: str) -> None:
    found = tools(folder / "bin", name)
    (found / name).write_text(f"#!/bin/sh\n{script}\n")
    (found / name).chmod(0o755)
    there.path(found)


def _in_force(holder: Bench) -> None:
    chain, bundle = holder.current("chain.pem"), holder.current("bundle.pem")
    assert "OK" in openssl("verify", "-CAfile", bundle, "-untrusted", chain, chain)


def _nothing_of(holder: Bench) -> None:
    assert not list(holder.install_dir.glob("generations/*"))
    assert not holder.current(".").is_symlink()
    assert not [one for one in holder.authority().records() if one.live(datetime.now(UTC))]


def _standings(holder: Bench) -> set[Standing]:
    return {record.standing for record in holder.authority().records()}
