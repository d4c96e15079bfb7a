"""The lines that --grants prints, read as `pveum` would and applied to the lab's API: the text itself is proven."""

import shlex
from collections.abc import Iterable
from dataclasses import dataclass, field

from lab.proxmox_api import LabPve


@dataclass
class Pveum:
    """An administrator of the lab's Proxmox, who types lines. roles: what each holds so far."""

    pve: LabPve
    roles: dict[str, set[str]] = field(default_factory=dict)

    def type(self, lines: Iterable[str]) -> None:
        """Each line as a shell runs it: what follows `||` only where what precedes it failed."""
        for line in lines:
            if line.startswith("#"):
                continue
            commands: list[list[str]] = [[]]
            for word in shlex.split(line):
                if word == "||":
                    commands.append([])
                else:
                    commands[-1].append(word)
            assert any(self._run(command) for command in commands), line

    def _run(self, words: list[str]) -> bool:
        assert words[0] == "pveum", words
        match words[1:]:
            case ["role", "add", role, "--privs", names]:
                if role in self.roles:
                    return False
                self.roles[role] = set(names.split(","))
            case ["role", "modify", role, "--append", "1", "--privs", names]:
                self.roles[role] |= set(names.split(","))
            case ["acl", "modify", path, "--users" | "--tokens" as kind, who, "--roles", role]:
                assert ("!" in who) == (kind == "--tokens"), words
                self.pve.grant(who, path, *self.roles[role])
            case _:
                raise AssertionError(f"pveum does not know {words}")
        return True
