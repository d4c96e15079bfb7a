"""Who may do what on the lab's API: access lists as Proxmox applies them, to users and to their tokens."""

from collections.abc import Collection, Iterable, Mapping

# who (user@realm or user@realm!token) -> what was granted: path and privileges, all of it propagating
Granted = Mapping[str, Iterable[tuple[str, Collection[str]]]]

_TOP = ("/", "/access", "/access/groups", "/nodes", "/pool", "/sdn", "/storage", "/vms")


def owner(who: str) -> str:
    """The user of a token, or the user itself."""
    return who.partition("!")[0]


def held(granted: Granted, who: str, path: str, *, separated: Collection[str]) -> frozenset[str]:
    """The privileges of a user or token on a path.

    What is granted on a deeper path replaces what comes from above. A token with privilege separation, one of
    `separated`, has what both it and its user were granted; any other token is its user.
    """
    own = _of(granted, who if who in separated else owner(who), path)
    return own & _of(granted, owner(who), path) if who in separated else own


def listed(
    granted: Granted, who: str, *, separated: Collection[str], more: Iterable[str] = ()
) -> dict[str, dict[str, int]]:
    """What /access/permissions tells of all paths that any list names; 1 is for propagating."""
    paths = {*_TOP, *more, *(path for lists in granted.values() for path, _ in lists)}
    found = {path: held(granted, who, path, separated=separated) for path in sorted(paths)}
    return {path: dict.fromkeys(sorted(names), 1) for path, names in found.items() if names}


def _of(granted: Granted, who: str, path: str) -> frozenset[str]:
    mine = list(granted.get(who, ()))
    here = path.rstrip("/") or "/"
    while True:
        names = [set(privileges) for granted_on, privileges in mine if granted_on == here]
        if names:
            return frozenset().union(*names)
        if here == "/":
            return frozenset()
        here = here.rpartition("/")[0] or "/"
