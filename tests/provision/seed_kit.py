"""A site whose profile has user-data, and what another program reads on the disc that is made of it."""

import email
import subprocess
from email.message import Message
from pathlib import Path

from tests.provision.cluster_kit import answers
from tests.provision.kit import Place
from tests.require import need_command

SECRET_WORD = "hunter2-of-the-user-data"  # noqa: S105 - made up, and looked for in all that is told
USER_DATA = f"#cloud-config\nwrite_files:\n  - {{path: /etc/licence, content: {SECRET_WORD}}}\n"


def with_seed(place: Place) -> Place:
    """A site whose profile has user-data; the storage `local` takes ISO images."""
    answers(place).dns = {"nameserver": "10.0.0.53", "searchdomain": "lab.example"}
    with_user_data(place, USER_DATA)
    return place


def with_user_data(place: Place, text: str) -> None:
    (place.folder / "user-data").write_text(text)
    place.write_site(profile_user_data_file="user-data", profile_seed_storage="local")


def discs(place: Place) -> list[str]:
    return sorted(place.pve.storages["local"]["files"])


def on_the_disc(data: bytes, name: str, folder: Path) -> str:
    """A file of the disc, read by another program."""
    need_command("isoinfo")
    (folder / "judged.iso").write_bytes(data)
    command = ["isoinfo", "-R", "-i", str(folder / "judged.iso"), "-x", f"/{name}"]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=600).stdout


def parts(text: str) -> list[Message]:
    whole = email.message_from_string(text)
    assert whole.is_multipart()
    return [part for part in whole.walk() if not part.is_multipart()]


def read(part: Message) -> str:
    data = part.get_payload(decode=True)
    assert isinstance(data, bytes)
    return data.decode()
