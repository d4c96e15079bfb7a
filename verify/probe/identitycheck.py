"""The node's identity, judged: certificate, chain, key, files, expiry, revocation list, and the machine it is for."""

from __future__ import annotations

import os
import re
import stat
import time
from typing import Any, Mapping

from .machine import Machine
from .tls import Identity
from .tools import Answer, Tool
from .verdicts import CRITICAL, INFO, PASS, UNKNOWN, WARNING, check

DAY_S = 86400
_LEAST_S = 3 * DAY_S
_OPENSSL_S = 10.0
_PEM = re.compile(r"-----BEGIN X509 CRL-----.+?-----END X509 CRL-----", re.DOTALL)
_UUID = "/sys/class/dmi/id/product_uuid"
_AGAIN = "ask infra for a new ticket, then onboard the node again"
_MOST_LISTS = 4


def tools(identity: Identity, machine: Machine) -> dict[str, Tool]:
    """What the node's own openssl is asked."""
    openssl = machine.tool("openssl")
    if openssl is None:
        return {}
    words = [openssl, "verify", "-x509_strict", "-CAfile", identity.ca_file, "-untrusted", identity.cert_file]
    asked = {
        "openssl verify": Tool([*words, identity.cert_file], _OPENSSL_S),
        "openssl serial": Tool([openssl, "x509", "-in", identity.cert_file, "-noout", "-serial"], _OPENSSL_S),
    }
    for number, pem in enumerate(_lists(identity)[:_MOST_LISTS]):
        asked[f"openssl crl {number}"] = Tool(
            [openssl, "crl", "-noout", "-text", "-nameopt", "RFC2253"], _OPENSSL_S, pem.encode()
        )
    return asked


def checks(
    identity: Identity,
    facts: Mapping[str, Any],
    about: Mapping[str, Any],
    answers: Mapping[str, Answer],
    machine: Machine,
    now: float,
) -> list[dict[str, Any]]:
    """Everything about the identity. `facts` is what `identity_facts` found, `about` what the controller told."""
    found = [_identity(facts), _chain(answers.get("openssl verify"))]
    if facts.get("key_mode"):
        found += [_key_matches(facts), _key_file(identity, facts)]
    if facts.get("seconds_left") is not None:
        found.append(_expiry(facts))
    found.append(_revocation(identity, facts, answers, now))
    found.append(_machine_uuid(identity, about, machine))
    return found


def _identity(facts: Mapping[str, Any]) -> dict[str, Any]:
    fault = facts["fault"]
    return check(
        "identity",
        CRITICAL if fault else PASS,
        expected="certificate, key and bundle hold, and name this node",
        found=fault or f"{facts['spiffe_id']}, serial {facts['serial']}",
        why="no other node lets it join otherwise",
        advice=_AGAIN,
    )


def _chain(answer: Answer | None) -> dict[str, Any]:
    verdict, found = UNKNOWN, "openssl is not installed here"
    if answer is not None and answer.trouble:
        found = answer.trouble
    elif answer is not None:
        verdict = PASS if answer.status == 0 else CRITICAL
        found = (
            "openssl verify says OK" if answer.status == 0 else f"openssl verify: {answer.err.strip()[-500:]}"
        )
    return check(
        "certificate-chain",
        verdict,
        expected="the node's openssl builds a chain from the certificate to the bundle's root",
        found=found,
        why="a second opinion: engines and agents on the node use that library",
        advice=_AGAIN if verdict == CRITICAL else "install openssl, or look why it does not answer",
    )


def _key_matches(facts: Mapping[str, Any]) -> dict[str, Any]:
    fault = facts["fault"] or ""
    other = "is not the key of" in fault
    shaken = bool(facts.get("fingerprint_sha256"))
    return check(
        "key-matches",
        CRITICAL if other else PASS if shaken else UNKNOWN,
        expected="the key file is the certificate's key",
        found=fault if other else "a handshake with itself succeeds" if shaken else f"no handshake: {fault}",
        why="with another key no handshake succeeds",
        advice=_AGAIN,
    )


def _key_file(identity: Identity, facts: Mapping[str, Any]) -> dict[str, Any]:
    mode, notes = int(facts["key_mode"], 8), list(facts["notes"])
    folder = os.path.dirname(os.path.realpath(identity.key_file))
    try:
        folder_mode = stat.S_IMODE(os.stat(folder).st_mode)
    except OSError:
        folder_mode = 0
    # a sticky folder lets nobody replace another's file
    if folder_mode & 0o022 and not folder_mode & stat.S_ISVTX:
        notes.append(f"the folder {folder} has mode {folder_mode:04o}: others can replace the key")
    reach = mode & 0o007 or (folder_mode & 0o002 and not folder_mode & stat.S_ISVTX)
    return check(
        "key-file",
        CRITICAL if reach else WARNING if notes else PASS,
        expected="mode 0600, owned by the user that runs the probe",
        found="; ".join(notes) or f"mode {mode:04o}, owner {facts['key_owner']}",
        why="whoever reads the key is this node to every other",
        advice=f"chmod 0600 {identity.key_file}, chown it to the agent's user; if others read it, onboard again",
    )


def _expiry(facts: Mapping[str, Any]) -> dict[str, Any]:
    left = int(facts["seconds_left"])
    life = _seconds(facts["not_after"]) - _seconds(facts["not_before"])
    # a certificate that was made for a day must not count as ending from its first hour
    least = min(_LEAST_S, life / 10)
    verdict = CRITICAL if left < least else WARNING if left < life / 3 else PASS
    found = f"valid until {facts['not_after']}, {left / DAY_S:.1f} of {life / DAY_S:.1f} days left"
    return check(
        "expiry",
        verdict,
        expected=f"more than a third of its life left; never under {least / DAY_S:.1f} days",
        found=found if left > 0 else f"expired on {facts['not_after']}",
        why="an expired certificate ends every connection at once",
        advice="renew it: onboard-node with a new ticket before that day",
    )


def _revocation(
    identity: Identity, facts: Mapping[str, Any], answers: Mapping[str, Answer], now: float
) -> dict[str, Any]:
    verdict, found = _judged_lists(identity, facts, answers, now)
    return check(
        "revocation-list",
        verdict,
        expected="a list is installed, is in date, and this node's serial is not on it",
        found=found,
        why="without one a stolen and revoked identity is still let in; an outdated one stops every handshake",
        advice=f"install the authority's newest list as {identity.crl_file or 'the crl_file of agent.yaml'}",
    )


def _judged_lists(
    identity: Identity, facts: Mapping[str, Any], answers: Mapping[str, Answer], now: float
) -> tuple[str, str]:
    if identity.crl_file is None:
        return INFO, "agent.yaml names no list"
    if not os.path.exists(identity.crl_file):
        return WARNING, f"there is no {identity.crl_file}"
    asked = [answers[name] for name in sorted(answers) if name.startswith("openssl crl ")]
    if not _lists(identity):
        return CRITICAL, f"{identity.crl_file} holds no list"
    if not asked:
        return UNKNOWN, "openssl is not installed here"
    # a revoked certificate ends the handshake that would have told its serial
    said = answers.get("openssl serial")
    shown = re.search(r"serial=([0-9A-F]+)", said.out) if said else None
    serial = f"{int(shown.group(1), 16):x}" if shown else str(facts.get("serial") or "")
    worst, told = PASS, []
    for answer in asked:
        verdict, text = _one_list(answer, serial, now)
        told.append(text)
        worst = max(worst, verdict, key=(PASS, UNKNOWN, WARNING, CRITICAL).index)
    return worst, "; ".join(told)


def _one_list(answer: Answer, serial: str, now: float) -> tuple[str, str]:
    if answer.trouble:
        return UNKNOWN, answer.trouble
    last = re.search(r"Last Update: (.+ GMT)", answer.out)
    following = re.search(r"Next Update: (.+ GMT)", answer.out)
    if answer.status != 0 or last is None or following is None:
        return CRITICAL, f"openssl cannot read the list: {answer.last}"
    made, ends = (_openssl_time(match.group(1)) for match in (last, following))
    listed = {int(text, 16) for text in re.findall(r"Serial Number: ([0-9A-F]+)", answer.out)}
    age = f"{(now - made) / DAY_S:.1f} days old, next due in {(ends - now) / DAY_S:.1f} days, {len(listed)} on it"
    if serial and int(serial, 16) in listed:
        return CRITICAL, f"this node's serial {serial} is on it ({age})"
    if ends <= now:
        return CRITICAL, f"its next update was due {(now - ends) / DAY_S:.1f} days ago"
    return (WARNING if ends - now < (ends - made) / 3 else PASS), age


def _machine_uuid(identity: Identity, about: Mapping[str, Any], machine: Machine) -> dict[str, Any]:
    """Onboarding certified one machine; a disk that was cloned or restored carries its identity elsewhere."""
    own, fault = about.get("machine_uuid"), ""
    if not own:
        try:
            own = machine.text(_UUID).strip()
        except OSError as error:
            fault = error.strerror or "not readable"
    beside = about.get("installed_uuid") or _noted(identity)
    certified = about.get("certified_uuid") or beside
    others = sorted({str(each).lower() for each in (own, beside) if each} - {str(certified).lower()})
    verdict, found = PASS, f"this machine is {own}"
    if certified and others:
        verdict = CRITICAL
        what = "this machine" if own and str(own).lower() in others else "the installed identity's own note"
        found = f"{what} says {others[0]}: the identity was cloned or restored onto another machine"
    elif not own:
        verdict, found = UNKNOWN, f"{_UUID}: {fault.lower()}"
    elif not certified:
        verdict, found = UNKNOWN, f"this machine is {own}, but which one was certified is not known here"
    return check(
        "machine-uuid",
        verdict,
        expected=f"the certified machine, {certified}" if certified else "the machine that was certified",
        found=found,
        why="two machines with one identity can pose as each other",
        advice="revoke this identity and onboard the machine under a name of its own"
        if verdict == CRITICAL
        else "run it as root, or let the login run 'cat' on that file (sudoers)",
    )


def _noted(identity: Identity) -> str | None:
    """The machine that onboard-node noted beside the key."""
    try:
        with open(os.path.join(os.path.dirname(identity.key_file), "uuid"), encoding="ascii") as file:
            return file.read(100).strip() or None
    except (OSError, UnicodeDecodeError):
        return None


def _lists(identity: Identity) -> list[str]:
    if identity.crl_file is None:
        return []
    try:
        with open(identity.crl_file, encoding="ascii", errors="replace") as file:
            return _PEM.findall(file.read(1 << 20))
    except OSError:
        return []


def _openssl_time(text: str) -> float:
    return _epoch(time.strptime(" ".join(text.split()), "%b %d %H:%M:%S %Y GMT"))


def _seconds(text: str) -> float:
    return _epoch(time.strptime(text, "%Y-%m-%dT%H:%M:%SZ"))


def _epoch(moment: time.struct_time) -> float:
    import calendar

    return float(calendar.timegm(moment))
