"""A profile's own user-data: read, and refused where it would undo what a node's login and identity stand on.

What it holds may be secret: it is never logged, nor part of any output.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from inventory.errors import BadFile, Fault

MAX_BYTES = 1024 * 1024
CLOUD_CONFIG = "#cloud-config"
SCRIPT = "#!"
_OURS = "comes from the profile and the node's name"
_KEYS = "makes the host keys that the node is known by"
_PARTS = "says how the parts of user-data are put together, which would undo ours"
_MODULES = "leaves out parts of cloud-init that log the owner in and make the host keys"
_REFUSED = {
    "user": f"{_OURS}: set user in the profile",
    "ssh_authorized_keys": f"{_OURS}: add the keys to its ssh_keys_file",
    "hostname": _OURS,
    "fqdn": _OURS,
    "preserve_hostname": _OURS,
    "manage_etc_hosts": _OURS,
    "network": f"{_OURS}, on the same disc",
    "system_info": "changes the login user, which comes from the profile",
    "ssh_keys": _KEYS,
    "ssh_deletekeys": _KEYS,
    "ssh_genkeytypes": _KEYS,
    "merge_how": _PARTS,
    "merge_type": _PARTS,
    "cloud_init_modules": _MODULES,
    "cloud_config_modules": _MODULES,
    "cloud_final_modules": _MODULES,
}


@dataclass(frozen=True, slots=True)
class UserData:
    """A file that was found to be fit. text: with its header line; it shows in no repr.

    sets_users: it adds users of its own beside the login user.
    """

    file: str
    text: str = field(repr=False)
    sets_users: bool = False

    @property
    def is_script(self) -> bool:
        """A script, not a cloud-config."""
        return self.text.startswith(SCRIPT)


def read_user_data(file: Path, *, user: str | None = None) -> UserData:
    """The user-data in a file.

    user: the profile's login user, whom the file must leave alone.

    Raises:
        BadFile: it is missing, or unfit; every fault is told with its place, and none with what stands there.
    """
    name = str(file)
    text = _text(file, name)
    if text.startswith(SCRIPT):
        if "\r\n" in text:
            raise _bad(
                name, "the script has the line ends of Windows: the kernel would not find its interpreter"
            )
        return UserData(name, text)
    first = text.partition("\n")[0].rstrip()
    if first != CLOUD_CONFIG:
        raise _bad(
            name,
            f"the first line is neither {CLOUD_CONFIG} nor begins with {SCRIPT}: cloud-init would ignore it",
        )
    return _cloud_config(name, text, user)


def _text(file: Path, name: str) -> str:
    try:
        with file.open("rb") as stream:
            raw = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise _bad(name, f"cannot be read: {error.strerror or error}") from error
    if len(raw) > MAX_BYTES:
        raise _bad(name, f"larger than {MAX_BYTES} bytes")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        before = raw[: error.start]
        line = before.count(b"\n") + 1
        column = len(before.rpartition(b"\n")[2].decode("utf-8", errors="replace")) + 1
        raise BadFile(name, [Fault(f"{name}:{line}:{column}", f"not UTF-8 at byte {error.start}")]) from error
    if not text.strip():
        raise _bad(name, "the file is empty")
    return text


def _cloud_config(name: str, text: str, user: str | None) -> UserData:
    try:
        tree: Node | None = YAML(typ="safe", pure=True).compose(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{name}:{mark.line + 1}:{mark.column + 1}" if mark else f"{name}:1:1"
        raise BadFile(name, [Fault(place, f"not YAML: {error.problem or error.context}")]) from None
    except (YAMLError, ValueError):
        raise _bad(name, "not YAML") from None
    if tree is None:
        raise _bad(name, f"nothing follows {CLOUD_CONFIG}")
    if not isinstance(tree, MappingNode):
        raise BadFile(name, [Fault(_place(name, tree), "should be a mapping of cloud-config's keys")])
    entries = {str(key.value): (key, value) for key, value in tree.value if isinstance(key, ScalarNode)}
    faults = [
        Fault(_place(name, key), f"{word} {_REFUSED[word]}")
        for word, (key, _) in entries.items()
        if word in _REFUSED
    ]
    if "users" in entries:
        faults += _user_faults(name, *entries["users"], user)
    if faults:
        raise BadFile(name, faults)
    return UserData(name, text, sets_users="users" in entries)


def _user_faults(name: str, key: Node, users: Node, user: str | None) -> Iterator[Fault]:
    items = list(users.value) if isinstance(users, SequenceNode) else []
    if not any(isinstance(item, ScalarNode) and item.value == "default" for item in items):
        yield Fault(_place(name, key), "users without default would leave out the profile's login user")
    for item in items:
        for word, value in item.value if isinstance(item, MappingNode) else ():
            if word.value == "name" and user is not None and value.value == user:
                yield Fault(_place(name, value), "users has the login user, who comes from the profile")


def _place(name: str, node: Node) -> str:
    return f"{name}:{node.start_mark.line + 1}:{node.start_mark.column + 1}"


def _bad(name: str, why: str) -> BadFile:
    return BadFile(name, [Fault(f"{name}:1:1", why)])
