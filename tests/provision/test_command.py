"""The command as a person meets it, against a Proxmox served over TLS."""

from tests.provision.kit import Place


def test_a_node_reaches_awaiting_identity(place: Place) -> None:
    done = place.run("gpu-01", "--profile", "small", "--yes", "--json")

    print(done.stderr, done.stdout)
    assert done.returncode == 0
