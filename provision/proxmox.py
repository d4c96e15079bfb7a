"""Proxmox over its API, by proxmoxer, which no other module imports; TLS is always verified."""

import json
import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import proxmoxer.backends.https
import proxmoxer.core
import requests
from proxmoxer import ProxmoxResource, ResourceException
from proxmoxer.backends.https import Backend, JsonSerializer
from requests.utils import get_environ_proxies

from inventory.errors import MusterError, OtherSide
from provision.api_token import Token
from provision.cluster import Cluster
from provision.connection import network_reason, presented_fingerprint
from provision.guest import check_readable
from provision.hypervisor import ChangedMeanwhile, IdTaken, TaskStatus, Unanswered, Unreachable
from provision.plan import Clone, Create
from provision.properties import Config
from provision.removal import Removal
from provision.trust import Trust
from provision.upid import is_newer
from provision.uploads import Uploads

CONNECT_S = 10.0
ANSWER_S = 45.0  # pveproxy itself waits 30 s for the daemon behind it; giving up earlier tells nothing
_TAIL = 20
_PAGE = 50
_TAKEN = re.compile(r"config file already exists|(?:VM|CT) \d+ already exists")
_GONE = re.compile(r"Configuration file '[^']*' does not exist|unable to find configuration file")
_NO_AGENT = re.compile(r"guest agent is not running|is not running|got timeout")
_NO_FILE = re.compile(r"No such file or directory")

# proxmoxer logs the body of each write at INFO, answers at DEBUG; no setting of the program may bring that back.
for _name in (proxmoxer.core.__name__, proxmoxer.backends.https.__name__):
    logging.getLogger(_name).disabled = True


class _WholeAnswer(JsonSerializer):  # type: ignore[misc]  # proxmoxer has no types
    """The envelope as it came: `total` stands beside `data`, the text of an error in `message`."""

    def loads(self, response: requests.Response) -> Any:  # noqa: ANN401 - JSON
        return _json(response) or {"data": None}

    def loads_errors(self, response: requests.Response) -> Any:  # noqa: ANN401 - JSON
        return _json(response)


class Proxmox(Cluster, Removal, Uploads):
    """One Proxmox cluster, through one of its nodes; implements `Hypervisor`.

    Args:
        url: https://host:port.
        ca_file: PEM; only certificates from there are believed.
        fingerprint: SHA-256 of the one certificate that is believed; exactly one of the two is given.
        timeout_s: how long one answer may take.
    """

    def __init__(
        self,
        *,
        url: str,
        token: Token,
        ca_file: Path | None = None,
        fingerprint: str | None = None,
        timeout_s: float = ANSWER_S,
    ) -> None:
        parts = urlsplit(url)
        self._host, self._port = str(parts.hostname), int(parts.port or 8006)
        self._token = token
        self._trust = Trust(ca_file, fingerprint)
        backend = Backend(
            self._host,
            port=self._port,
            user=token.user,
            token_name=token.name,
            token_value=token.secret,
            verify_ssl=True,  # and by `Trust`, which alone has a say
            timeout=(CONNECT_S, timeout_s),
        )
        self._session = backend.get_session()
        self._trust.mount(self._session)
        # The environment's proxy for this address is looked up once, not anew for each request.
        self._session.proxies = get_environ_proxies(backend.get_base_url())
        self._session.trust_env = False
        self._session.max_redirects = 0  # the API never redirects, and a token goes nowhere else
        self._api = ProxmoxResource(
            base_url=backend.get_base_url(), session=self._session, serializer=_WholeAnswer()
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def token_id(self) -> str:
        """user@realm!name of the token that asks."""
        return self._token.id

    def close(self) -> None:
        """End the connections."""
        self._session.close()

    def config(self, host: str, vmid: int) -> Config | None:
        """The VM's config; None if there is no such VM on that host."""
        try:
            found: Config = self._get("nodes", host, "qemu", vmid, "config")
        except _Answered as error:
            if _GONE.search(error.text):
                return None
            raise
        return found

    def running(self, host: str, vmid: int) -> bool:
        """Whether the VM runs."""
        return bool(self._get("nodes", host, "qemu", vmid, "status", "current").get("status") == "running")

    def free_id(self, vmid: int | None = None) -> int | None:
        """A free VM id; with `vmid`, that one if it is free, else None. It is not reserved."""
        try:
            return int(self._get("cluster", "nextid", vmid=vmid))
        except _Answered as error:
            if vmid is not None and error.status == 400 and _TAKEN.search(error.text):
                return None
            raise

    def clone(self, order: Clone | Create, *, vmid: int, name: str, description: str) -> str:
        """Begin to make the VM, from a template or from an image; the task's UPID."""
        try:
            if isinstance(order, Create):
                path: tuple[str | int, ...] = ("nodes", order.host, "qemu")
                config = dict(order.config) | {"name": name, "description": description}
                return str(self._write("POST", path, vmid=vmid, pool=order.pool, **config))
            path = ("nodes", order.source, "qemu", order.template, "clone")
            upid = self._write(
                "POST",
                path,
                newid=vmid,
                name=name,
                full=0 if order.linked else 1,
                storage=None if order.linked else order.storage,  # Proxmox refuses it for linked clones
                pool=order.pool,
                description=description,
                target=order.host if order.host != order.source else None,
            )
        except _Answered as error:
            if error.status == 500 and _TAKEN.search(error.text):
                raise IdTaken(error.what, why=error.why, next_step=error.next_step) from None
            raise
        return str(upid)

    def configure(
        self, host: str, vmid: int, *, changes: Mapping[str, str], delete: Sequence[str], digest: str | None
    ) -> None:
        """Change the config, if it is still the one with this digest."""
        try:
            self._write(
                "PUT",
                ("nodes", host, "qemu", vmid, "config"),
                **changes,
                delete=",".join(delete) or None,
                digest=digest,
            )
        except _Answered as error:
            if "checksum mismatch" in error.text or "detected modified configuration" in error.text:
                raise ChangedMeanwhile(
                    f"VM {vmid} was not changed",
                    why=f"somebody else changed its config meanwhile ({error.text})",
                    next_step="run the command again: it looks at the new config first",
                ) from None
            raise

    def resize(self, host: str, vmid: int, *, disk: str, size_gib: int) -> str | None:
        """Begin to grow a disk; the task's UPID (before qemu-server 8.0.5 there was no task)."""
        upid = self._write("PUT", ("nodes", host, "qemu", vmid, "resize"), disk=disk, size=f"{size_gib}G")
        return None if upid is None else str(upid)

    def start(self, host: str, vmid: int) -> str:
        """Begin to start the VM; the task's UPID."""
        return str(self._write("POST", ("nodes", host, "qemu", vmid, "status", "start")))

    def task(self, upid: str) -> TaskStatus | None:
        """How a task stands; None if Proxmox does not know it (any more)."""
        try:
            found = self._get("nodes", upid.split(":")[1], "tasks", upid, "status")
        except _Answered as error:
            if "no such task" in error.text or "unable to parse worker upid" in error.text:
                return None
            raise
        return TaskStatus(None if found.get("status") == "running" else str(found.get("exitstatus")))

    def task_log(self, upid: str) -> tuple[str, ...]:
        """The last lines of a task's log; Proxmox gives the first 50 unless it is asked otherwise."""
        path = ("nodes", upid.split(":")[1], "tasks", upid, "log")
        answer = self._call("GET", path, start=0, limit=_PAGE)
        lines, total = _lines(answer), answer.get("total")
        while len(lines) >= _PAGE and lines and (total is None or len(lines) < total):
            start = len(lines) if total is None else max(len(lines), int(total) - _TAIL)
            more = _lines(self._call("GET", path, start=start, limit=_PAGE))
            lines += more
            if total is not None or len(more) < _PAGE:
                break
        return tuple(lines[-_TAIL:])

    def newest_task(self, host: str, *, vmid: int, kind: str, known: str | None = None) -> str | None:
        """The UPID of the newest task of a kind on a VM, if it began after the task `known`."""
        rows = self._get("nodes", host, "tasks", vmid=vmid, typefilter=kind, source="all", limit=_PAGE)
        rows = [row for row in rows if row.get("type") == kind and is_newer(str(row["upid"]), known)]
        return max(rows, key=lambda row: row.get("starttime", 0))["upid"] if rows else None

    def interfaces(self, host: str, vmid: int) -> Sequence[Mapping[str, Any]] | None:
        """What the guest agent tells of the network; None while the agent does not answer."""
        try:
            answer = self._get("nodes", host, "qemu", vmid, "agent", "network-get-interfaces")
        except _Answered as error:
            if error.status == 500 and _NO_AGENT.search(error.text):
                return None
            raise
        found = answer.get("result") if isinstance(answer, dict) else None
        return found if isinstance(found, list) else None

    def read_file(self, host: str, vmid: int, path: str) -> str | None:
        """A file of the guest, one of `guest.READABLE` only; None if it is not there or empty.

        Raises:
            Unreachable: the agent does not answer at the moment.
        """
        check_readable(path)
        try:
            answer = self._get("nodes", host, "qemu", vmid, "agent", "file-read", file=path)
        except _Answered as error:
            if error.status == 500 and _NO_FILE.search(error.text):
                return None
            if error.status == 500 and _NO_AGENT.search(error.text):
                raise Unreachable(error.what, why=error.text, next_step=error.next_step) from None
            raise
        return answer.get("content") or None

    def _get(self, *path: str | int, **params: Any) -> Any:  # noqa: ANN401 - JSON
        return self._call("GET", path, **params)["data"]

    def _write(self, method: str, path: tuple[str | int, ...], **params: Any) -> Any:  # noqa: ANN401 - JSON
        return self._call(method, path, **params)["data"]

    def _call(self, method: str, path: tuple[str | int, ...], **params: Any) -> Any:  # noqa: ANN401 - JSON
        """One request.

        Its failure is raised outside of the handlers, so that no trace of it, with the token in its headers and
        the socket under it, hangs on the error.
        """
        what = f"{method} /{'/'.join(map(str, path))}"
        verb = getattr(self._api, method.lower())
        write = method != "GET"
        try:
            return verb(*path, **{key: value for key, value in params.items() if value is not None})
        except ResourceException as error:
            failure: MusterError = self._answered(what, error, write=write)
        except requests.exceptions.SSLError as error:
            failure = self._not_trusted(error)
        except (requests.exceptions.ConnectTimeout, requests.exceptions.ProxyError) as error:
            failure = self._unreachable(error)
        except requests.exceptions.ConnectionError as error:
            # Refused and unresolved names come from the connecting; all else may have come after the sending.
            sent = "NewConnectionError" not in repr(error) and "NameResolutionError" not in repr(error)
            failure = (
                _unanswered(what, "the connection broke") if write and sent else self._unreachable(error)
            )
        except requests.exceptions.Timeout:
            slow = Unreachable(
                f"{what} had no answer", why="the time is over", next_step="run the command again"
            )
            failure = _unanswered(what, "no answer in time") if write else slow
        except (requests.exceptions.RequestException, OSError, ValueError) as error:
            why = str(error) or type(error).__name__
            failure = OtherSide(f"{what} failed", why=why, next_step="run the command again")
        raise failure

    def _answered(self, what: str, error: ResourceException, *, write: bool) -> MusterError:
        status = int(error.status_code)
        body = error.errors if isinstance(error.errors, dict) else {}
        text = str(body.get("message") or error.content or error.status_message).strip()
        if isinstance(body.get("errors"), dict):
            text += "".join(f"\n{key}: {str(fault).strip()}" for key, fault in body["errors"].items())
        if status == 596 and "certificate verify failed" in text:
            return self._wrong_host_name(what, text)
        if 595 <= status <= 599:
            # 595 is from the connecting, so nothing happened; after the others a write may have.
            if write and status != 595:
                return _unanswered(what, f"Proxmox said {status} {text}")
            return Unreachable(
                f"{what} did not get through",
                why=f"Proxmox said {status} {text}: its API runs, the node behind it did not answer",
                next_step="look whether that Proxmox node is up, then run the command again",
            )
        if status == 401:
            return _Answered(
                f"Proxmox refused the token {self._token.id}",
                why=f"{status} {text}",
                next_step="check that the token exists, has not expired and is whole in token_file",
                status=status,
                text=text,
            )
        if status == 403:
            return _Answered(
                f"the token {self._token.id} may not do {what}",
                why=text,
                next_step="grant it what the line above names, to the user and to the token"
                " (provision-node --grants prints the lines)",
                status=status,
                text=text,
            )
        return _Answered(
            f"Proxmox refused {what}",
            why=f"{status} {text}",
            next_step="mend what the line above names, then run the command again",
            status=status,
            text=text,
        )

    def _wrong_host_name(self, what: str, text: str) -> OtherSide:
        """Proxmox's proxy does not believe the node behind it, often one named by its DNS name or in another case."""
        asked = what.partition("/nodes/")[2].partition("/")[0]
        return OtherSide(
            f"{what} did not get through",
            why=f"Proxmox said 596 {text}: it is its own node {asked} that it does not trust, not we that mistrust it",
            next_step=f"check that {asked} is a node's name as Proxmox lists it, else renew that node's certificate"
            " (pvecm updatecerts)",
        )

    def _not_trusted(self, error: Exception) -> OtherSide:
        why = self._trust.why_not(error)
        presented = presented_fingerprint(self._host, self._port, timeout_s=CONNECT_S)
        if presented and presented not in why:
            why += f"\nit presents a certificate with SHA-256 {presented}"
        return OtherSide(
            f"Proxmox at {self._host}:{self._port} is not trusted", why=why, next_step=self._trust.next_step()
        )

    def _unreachable(self, error: Exception) -> Unreachable:
        return Unreachable(
            f"Proxmox at {self._host}:{self._port} is out of reach",
            why=network_reason(error),
            next_step="check the address in the site file and the network, then run the command again",
        )


class _Answered(OtherSide):
    """Proxmox answered with an error. status: HTTP. text: its words."""

    def __init__(self, what: str, *, why: str, next_step: str, status: int = 0, text: str = "") -> None:
        super().__init__(what, why=why, next_step=next_step)
        self.status = status
        self.text = text


def _unanswered(what: str, why: str) -> Unanswered:
    return Unanswered(
        f"the answer to {what} was lost",
        why=f"{why}; Proxmox may have done it",
        next_step="run the command again: it looks what happened before it goes on",
    )


def _json(response: requests.Response) -> dict[str, Any]:
    try:
        found = json.loads(response.content.decode("utf-8"))
    except (UnicodeDecodeError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _lines(answer: Mapping[str, Any]) -> list[str]:
    return [str(row.get("t", "")) for row in answer.get("data") or ()]
