"""Walls made by unshare(1) and mount(8), for an ordinary user on a machine without bubblewrap."""

from collections.abc import Sequence
from pathlib import Path

from lab.walled import View

TOOLS = ("setpriv", "unshare", "mount", "umount", "pivot_root", "hostname")
_ENTER = Path(__file__).with_name("user_namespace.sh")


class UserNamespace:
    """Shuts commands in with namespaces that the user may make."""

    name = "unshare"

    def around(self, view: View) -> Sequence[str]:
        """See `lab.walled.Walls`."""
        lists = (view.programs, view.masked, [path for pair in view.devices for path in pair])
        return [
            *("setpriv", "--pdeathsig", "KILL"),
            *("unshare", "--user", "--map-root-user", "--mount", "--uts", "--ipc", "--pid"),
            *("--fork", "--kill-child=KILL"),
            *("/bin/sh", str(_ENTER), str(view.disk), view.hostname, str(view.uuid)),
            *(str(view.before or ""), str(view.before_at)),
            *("\n".join(map(str, paths)) for paths in lists),
        ]
