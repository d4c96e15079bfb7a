"""What is learnt of a guest, and what reaches it: addresses, keys, fabrics, cloud-init."""

from inventory.model import State
from inventory.ticket import peek_ticket
from tests.provision.cluster_kit import answers
from tests.provision.kit import Place, failure, make, public_line, state


def test_two_machines_with_one_host_key_are_refused(place: Place) -> None:
    place.files["/etc/ssh/ssh_host_ed25519_key.pub"] = public_line()
    make(place.road(), "gpu-01")

    error = failure(place, "gpu-02")

    assert error.what == "gpu-02 cannot be told from gpu-01"
    assert "in the template" in error.next_step
    assert state(place, "gpu-02") is State.PROVISION_FAILED


def test_two_machines_with_one_machine_id_are_refused(place: Place) -> None:
    place.files["/etc/machine-id"] = "0123456789abcdef0123456789abcdef\n"
    make(place.road(), "gpu-01")

    assert "machine-id 0123456789abcdef0123456789abcdef" in failure(place, "gpu-02").why


def test_a_cloud_init_that_failed_fails_the_node(place: Place) -> None:
    place.files["/run/cloud-init/result.json"] = '{"v1": {"datasource": null, "errors": ["no user muster"]}}'

    error = failure(place)

    assert (error.what, error.why) == ("cloud-init failed in VM 100", "no user muster")


def test_a_guest_without_cloud_init_is_taken_with_a_warning(place: Place) -> None:
    place.files["/run/cloud-init/result.json"] = ""

    assert "cloud-init has left no result here" in make(place.road()).warnings[0]


def test_a_cloud_init_that_runs_is_waited_for(place: Place) -> None:
    place.files["/run/cloud-init/result.json"] = ""
    place.files["/run/cloud-init/status.json"] = '{"v1": {"stage": "modules-final"}}'

    assert "cloud-init did not end" in failure(place).what


def test_a_guest_without_an_address_is_told_with_what_it_showed(place: Place) -> None:
    place.address = "169.254.7.7"

    error = failure(place)

    assert "eth0" in error.why
    assert "169.254.7.7" in error.why


def test_a_guest_without_host_keys_is_told(place: Place) -> None:
    place.files["/etc/ssh/ssh_host_ed25519_key.pub"] = ""

    assert "showed no SSH host key" in failure(place).what


def test_a_guest_without_machine_id_gets_a_ticket_that_names_none(place: Place) -> None:
    place.files["/etc/machine-id"] = ""

    made = make(place.road())

    assert peek_ticket(str(made.node.ticket)).machine_id is None
    assert any("machine-id" in warning for warning in made.warnings)


def test_a_static_address_is_reserved_sent_and_must_appear(place: Place) -> None:
    place.write_site(
        profile_network="{bridge: vmbr0, address: {from: 10.0.0.10/24, to: 10.0.0.11/24, gateway: 10.0.0.1}}"
    )

    made = make(place.road())

    assert place.requests.body_of("PUT", "/config")["ipconfig0"] == "ip=10.0.0.10/24,gw=10.0.0.1"
    assert made.node.address is not None
    assert (made.node.address.ip, made.node.address.source) == ("10.0.0.10", "static")
    place.address = "10.0.0.99"
    assert "no 10.0.0.11 on" in failure(place, "gpu-02").why
    place.address = "10.0.0.11"
    assert "no address left" not in str(make(place.road(), "gpu-02"))


def test_login_keys_are_encoded_twice_on_the_wire(place: Place) -> None:
    make(place.road())

    body = next(body for method, _, body in place.requests if method == "PUT")
    assert b"sshkeys=ssh-ed25519%2520AAAA" in body
    assert b"%250Assh-ed25519" in body


def test_fabrics_and_gpus_reach_the_vm_and_the_ticket(place: Place) -> None:
    place.pve.vm(9000).config["machine"] = "q35"
    answers(place).mappings = {"h100": {"pve1": 2}}
    answers(place).bridges = {"vmbr0": None, "vmbr1": 9000}
    place.write_site(
        profile_gpus="{mapping: h100, count: 2}",
        profile_fabrics="[{name: fabric0, bridge: vmbr1, mtu: 9000, rate_gbps: 400,"
        " addresses: {from: 192.168.50.1/24, to: 192.168.50.9/24}}]",
    )

    made = make(place.road())

    config = place.pve.vm(100).config
    assert config["hostpci0"] == config["hostpci1"] == "mapping=h100,pcie=1"
    assert str(config["balloon"]) == "0"
    assert config["ipconfig1"] == "ip=192.168.50.1/24"
    assert config["net1"].endswith(",bridge=vmbr1,mtu=9000")
    fabric = peek_ticket(str(made.node.ticket)).fabrics[0]
    assert (fabric.name, fabric.interface, fabric.mtu, fabric.address) == (
        "fabric0",
        "eth1",
        9000,
        "192.168.50.1/24",
    )
    assert fabric.mac == made.node.macs[1]
    assert place.road().prepare("gpu-01", profile=None).steps == ()


def test_the_nic_keeps_its_mac_when_its_vlan_changes(place: Place) -> None:
    place.write_site(profile_network="{bridge: vmbr0, vlan: 10, address: dhcp}")

    make(place.road())

    nic = place.pve.vm(100).config["net0"]
    assert nic.endswith(",bridge=vmbr0,firewall=1,tag=10")
    assert place.store.get("gpu-01").macs[0] in nic.lower()  # type: ignore[union-attr]  # it is there
