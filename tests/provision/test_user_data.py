"""A profile's user-data is read at once, and refused with its place where it would undo login or identity."""

from pathlib import Path

import pytest

from inventory.errors import BadFile
from provision.spec import load_site
from provision.user_data import MAX_BYTES, read_user_data
from provision.wanted import want
from tests.provision.kit import Place

GOOD = "#cloud-config\npackages: [nginx]\n"


def faults(folder: Path, content: bytes | str, *, user: str | None = None) -> list[str]:
    file = folder / "user-data"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(BadFile) as caught:
        read_user_data(file, user=user)
    return [str(fault).removeprefix(f"{file}:") for fault in caught.value.faults]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("", "1:1: the file is empty"),
        (" \n\n", "1:1: the file is empty"),
        (b"#cloud-config\na: \xff\n", "2:4: not UTF-8 at byte 17"),
        ("packages: [nginx]\n", "1:1: the first line is neither #cloud-config nor begins with #!"),
        ("\ufeff#cloud-config\n", "1:1: the first line is neither"),
        ("#cloud-config-archive\n[]\n", "1:1: the first line is neither"),
        ("#include\nhttps://host.example/x\n", "1:1: the first line is neither"),
        ("#cloud-config\n", "1:1: nothing follows #cloud-config"),
        ("#cloud-config\n- a\n", "2:1: should be a mapping"),
        ("#cloud-config\na: [\n", "3:1: not YAML"),
        ("#!/bin/sh\r\ntrue\r\n", "1:1: the script has the line ends of Windows"),
        (f"#!/bin/sh\n{'#' * MAX_BYTES}", f"1:1: larger than {MAX_BYTES} bytes"),
    ],
)
def test_a_file_that_cloud_init_would_not_take_is_refused_with_its_place(
    tmp_path: Path, content: bytes | str, told: str
) -> None:
    (found,) = faults(tmp_path, content)

    assert found.startswith(told)


def test_a_file_that_is_not_there_is_refused_where_the_site_file_names_it(place: Place) -> None:
    place.write_site(profile_user_data_file="none.yaml", profile_seed_storage="local")

    with pytest.raises(BadFile) as caught:
        load_site(place.site_file)

    (fault,) = map(str, caught.value.faults)
    line = place.site_file.read_text().splitlines().index("    user_data_file: none.yaml") + 1
    assert fault.startswith(f"{place.site_file}:{line}:5: profiles.small.user_data_file: ")
    assert fault.endswith(f"{place.folder / 'none.yaml'}:1:1: cannot be read: No such file or directory")


@pytest.mark.parametrize(
    "key",
    [
        "user", "ssh_authorized_keys", "hostname", "fqdn", "preserve_hostname", "manage_etc_hosts", "network",
        "system_info", "ssh_keys", "ssh_deletekeys", "ssh_genkeytypes", "merge_how", "cloud_final_modules",
    ],
)  # fmt: skip
def test_a_key_that_would_undo_login_name_or_host_keys_is_refused(tmp_path: Path, key: str) -> None:
    (found,) = faults(tmp_path, f"#cloud-config\npackages: []\n{key}: hidden-value\n")

    assert found.startswith(f"3:1: {key} ")
    assert "hidden-value" not in found


def test_all_faults_are_told_at_once(tmp_path: Path) -> None:
    found = faults(tmp_path, "#cloud-config\nhostname: x\nusers:\n  - name: muster\n", user="muster")

    assert [fault.partition(": ")[0] for fault in found] == ["2:1", "3:1", "4:11"]


def test_further_users_are_welcome_beside_the_login_user(tmp_path: Path) -> None:
    file = tmp_path / "user-data"
    file.write_text("#cloud-config\nusers:\n  - default\n  - name: ops\n")

    found = read_user_data(file, user="muster")

    assert found.sets_users
    assert "ops" not in repr(found)


def test_user_data_is_inherited_and_needs_a_storage_for_its_disc(place: Place) -> None:
    (place.folder / "ud").write_text(GOOD)
    place.write_site(profile_user_data_file="ud")
    with pytest.raises(BadFile) as caught:
        load_site(place.site_file)
    assert "user_data_file needs seed_storage" in caught.value.why

    place.write_site(profile_user_data_file="ud", profile_seed_storage="local")
    place.site_file.write_text(place.site_file.read_text() + "  child:\n    extends: small\n    cores: 4\n")
    spec = want(load_site(place.site_file), "n1", "child", ssh_keys=(), nodes=())

    assert spec.seed is not None
    assert (spec.seed.storage, spec.seed.user_data.text) == ("local", GOOD)


def test_other_user_data_is_another_wanted_vm(place: Place) -> None:
    hashes = set()
    for text in (GOOD, GOOD + "# more\n"):
        (place.folder / "ud").write_text(text)
        place.write_site(profile_user_data_file="ud", profile_seed_storage="local")
        hashes.add(want(load_site(place.site_file), "n1", "small", ssh_keys=(), nodes=()).hash)

    assert len(hashes) == 2
