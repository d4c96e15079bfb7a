"""The shell scripts that run on the node, each read by `sh -s` from stdin: three to enrol it, one to end (pure).

They need a POSIX shell, openssl and coreutils, nothing of ours. Each prints `key=value` lines; what they
print is believed only as far as `facts.py` checks it. A script runs as root where the login user is root or
may become it without a password, else as the login user.
"""

import base64
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

_HEAD = """\
set -u
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
LC_ALL=C
export PATH LC_ALL
umask 077
say() { printf '%s=%s\\n' "$1" "$2"; }
keyhash() { openssl pkey -in "$1" -pubout -outform DER 2>/dev/null | openssl dgst -sha256 -r | cut -c1-64; }
"""

_FACTS = """\
say uid "$(id -u)"
say clock "$(date +%s)"
say machine_id "$(cat /etc/machine-id 2>/dev/null)"
uuid=/sys/class/dmi/id/product_uuid
say machine_uuid "$({ cat $uuid || sudo -n "$(command -v cat)" $uuid </dev/null; } 2>/dev/null | tr A-F a-f)"
say owner_uid "$(id -u "$owner" 2>/dev/null)"
say group_gid "$(getent group "$group" 2>/dev/null | cut -d: -f3)"
for tool in openssl python3 install ln mv rm mkdir chown chmod readlink; do
    command -v "$tool" >/dev/null 2>&1 || say missing "$tool"
done
say openssl "$(openssl version 2>/dev/null | cut -d' ' -f2)"
say current "$(readlink "$dir/current" 2>/dev/null)"
if [ -f "$dir/current/chain.pem" ]; then
    say current_sha256 "$(openssl x509 -in "$dir/current/chain.pem" -noout -fingerprint -sha256 2>/dev/null \
        | cut -d= -f2 | tr -d : | tr A-F a-f)"
    say current_key "$(keyhash "$dir/current/key.pem")"
fi
for generation in "$dir"/generations/*; do
    [ -d "$generation" ] || continue
    say generation "${generation##*/} $(cat "$generation/ticket" 2>/dev/null)"
done
for link in /sys/class/net/*; do
    [ -e "$link/address" ] || continue
    say interface "${link##*/} $(cat "$link/address" 2>/dev/null)"
done
say end facts
"""

_KEY = """\
set -e
folder="$dir/generations/$generation"
mkdir -p "$dir/generations"
if [ ! -s "$folder/key.pem" ] || [ "$(cat "$folder/ticket" 2>/dev/null)" != "$ticket" ]; then
    rm -rf "$folder"
    mkdir "$folder"
    openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out "$folder/key.new"
    printf '%s\\n' "$ticket" > "$folder/ticket"
    mv "$folder/key.new" "$folder/key.pem"
fi
say key "$(keyhash "$folder/key.pem")"
openssl req -new -sha256 -key "$folder/key.pem" -subj "/CN=$node"
say end key
"""

_INSTALL = """\
folder="$dir/generations/$generation"
# A session that is cut must not end this half-way: it runs to its end, and the next run finds that it did.
trap '' HUP PIPE
before="$(readlink "$dir/current" 2>/dev/null)"
[ "$before" = "generations/$generation" ] && before="$(cat "$folder/before" 2>/dev/null)"
keys=""
saved="$folder/authorized_keys.before"
fail() {
    trap - INT TERM
    [ -n "$keys" ] && [ -f "$saved" ] && cp -p "$saved" "$keys.new" && mv "$keys.new" "$keys"
    if [ "$(readlink "$dir/current" 2>/dev/null)" = "generations/$generation" ]; then
        if [ -n "$before" ] && [ "$before" != "generations/$generation" ]; then
            ln -s "$before" "$dir/.current.new" && mv -T "$dir/.current.new" "$dir/current"
        else
            rm -f "$dir/current"
        fi
        [ -n "$reload_command" ] && sh -c "$reload_command" </dev/null >/dev/null 2>&1
    fi
    if command -v shred >/dev/null 2>&1; then shred -u "$folder/key.pem" 2>/dev/null; fi
    rm -rf "$folder" "$dir/.current.new"
    say failed "$1: $(printf '%s' "${2:-}" | tr '\\n' ' ' | cut -c1-400)"
    exit 1
}
trap 'fail interrupted' INT TERM
rm -f "$dir/.current.new"
[ -s "$folder/key.pem" ] || fail key "the key made for this ticket is gone"
put() {
    printf '%s' "$2" | openssl base64 -d -A > "$folder/$1.new" || fail write "$1"
    mv "$folder/$1.new" "$folder/$1" || fail write "$1"
}
@FILES@
if [ "$(id -u)" = 0 ]; then
    chown -R "$owner:$group" "$dir" || fail owner "chown $owner:$group"
fi
chmod 0755 "$dir" && chmod 0750 "$dir/generations" "$folder" && chmod 0640 "$folder"/* \\
    && chmod 0600 "$folder/key.pem" || fail modes "chmod"
[ "$(openssl x509 -in "$folder/chain.pem" -noout -pubkey 2>/dev/null)" \\
    = "$(openssl pkey -in "$folder/key.pem" -pubout 2>/dev/null)" ] || fail match "certificate and key differ"
judged="$(openssl verify -x509_strict -CAfile "$folder/bundle.pem" -untrusted "$folder/chain.pem" \\
    "$folder/chain.pem" 2>&1)" || fail chain "$judged"
if [ -n "$check_command" ]; then
    said="$(MUSTER_AGENT_CONFIG="$folder/agent.yaml" sh -c "$check_command" </dev/null 2>&1)" \\
        || fail check_command "$said"
fi
say step checked
printf '%s' "$before" > "$folder/before"
sync "$folder"/* "$folder" "$dir/generations" 2>/dev/null || sync
ln -s "generations/$generation" "$dir/.current.new" && mv -T "$dir/.current.new" "$dir/current" \\
    || fail swap "$dir/current"
if [ "$(id -u)" = 0 ]; then chown -h "$owner:$group" "$dir/current" || fail owner "chown -h"; fi
sync "$dir" 2>/dev/null || sync
say step swapped
if [ -n "$reload_command" ]; then
    said="$(sh -c "$reload_command" </dev/null 2>&1)" || fail reload_command "$said"
    say step reloaded
fi
if [ "$bootstrap" = remove ]; then
    eval "home=~$login"
    file="$home/.ssh/authorized_keys"
    if [ -f "$file" ] && grep -qF "$holder_key" "$file"; then
        cp -p "$file" "$saved" && cp -p "$file" "$file.new" && keys="$file" || fail bootstrap "$file"
        grep -F "$holder_key" "$saved" > "$file.new" && mv "$file.new" "$file" || fail bootstrap "$file"
        say bootstrap "$(grep -cvF "$holder_key" "$saved")"
    else
        say bootstrap none
    fi
    # Where root owns the identity, its upkeep needs root, and the sudo of the login user stays.
    if [ "$(id -u)" = 0 ] && [ "$login" != root ] && [ "$owner" != root ]; then
        for rules in /etc/sudoers.d/*; do
            [ -f "$rules" ] && grep -qE "^$login[[:space:]]" "$rules" || continue
            # The login user keeps just what verifying and a next identity need: to read the machine's uuid,
            # and to act as the key's owner.
            grep -vE "^$login[[:space:]]" "$rules" > "$folder/sudo.new"
            printf '%s ALL=(root) NOPASSWD: %s /sys/class/dmi/id/product_uuid\\n' "$login" "$(command -v cat)" \\
                >> "$folder/sudo.new"
            [ "$owner" = "$login" ] || printf '%s ALL=(%s) NOPASSWD: ALL\\n' "$login" "$owner" >> "$folder/sudo.new"
            chown 0:0 "$folder/sudo.new" && chmod 0440 "$folder/sudo.new" && mv "$folder/sudo.new" "$rules" \\
                || fail sudo "$rules"
            say sudo "$rules"
        done
    fi
    rm -f "$saved"
fi
trap - INT TERM
for old in "$dir"/generations/*; do
    case "generations/${old##*/}" in
        "generations/$generation" | "$before") ;;
        *) rm -rf "$old" ;;
    esac
done
say end install
"""

_WIPE = """\
trap '' HUP PIPE
for key in "$dir"/generations/*/key.pem; do
    [ -f "$key" ] || continue
    if command -v shred >/dev/null 2>&1; then shred -u "$key" 2>/dev/null; fi
    rm -f "$key"
    say wiped "$key"
done
rm -rf "$dir/current" "$dir/generations" "$dir/.current.new"
sync "$dir" 2>/dev/null || sync
[ ! -e "$dir/generations" ] && [ ! -L "$dir/current" ] && say end wipe
"""


@dataclass(frozen=True, slots=True)
class Place:
    """Where an identity lies on the node: an absolute folder, and who owns what is in it."""

    dir: str
    owner: str
    group: str


def run(place: Place) -> str:
    """The command that reads a script: as root where that needs no password, else as the owner, else as the login.

    The login shell only starts sh: what shell it is does not matter. `sudo -n` never asks (sudo(8)).
    """
    may = "sudo -n {}true </dev/null >/dev/null 2>&1"
    return (
        f'if [ "$(id -u)" != 0 ] && {may.format("")}; then exec sudo -n sh -s;'
        f' elif [ "$(id -u)" != 0 ] && [ "$(id -un)" != {place.owner} ] && {may.format(f"-u {place.owner} ")};'
        f" then exec sudo -n -u {place.owner} sh -s; else exec sh -s; fi"
    )


def facts(place: Place) -> bytes:
    """Reads what the node is; changes nothing."""
    return _script(_FACTS, dir=place.dir, owner=place.owner, group=place.group)


def make_key(place: Place, *, generation: int, ticket: str, node: str) -> bytes:
    """Makes the key of a generation under umask 077 and prints a CSR; the same ticket finds its key again."""
    return _script(_KEY, dir=place.dir, generation=str(generation), ticket=ticket, node=node)


def install(
    place: Place,
    *,
    generation: int,
    files: Mapping[str, bytes],
    login: str,
    holder_key: str,
    bootstrap: str,
    check_command: str | None,
    reload_command: str | None,
) -> bytes:
    """Installs a generation, checks it there, swaps the link; a failure puts back what was and wipes the key.

    holder_key: type and base64 of the one login key that stays when `bootstrap` is `remove`.
    """
    puts = "\n".join(f"put {name} {base64.b64encode(content).decode()}" for name, content in files.items())
    return _script(
        _INSTALL.replace("@FILES@", puts),
        dir=place.dir,
        owner=place.owner,
        group=place.group,
        generation=str(generation),
        login=login,
        holder_key=holder_key,
        bootstrap=bootstrap,
        check_command=check_command or "",
        reload_command=reload_command or "",
    )


def wipe(place: Place) -> bytes:
    """Wipes every key and identity of the node, and the link to the one in force."""
    return _script(_WIPE, dir=place.dir)


def _script(body: str, **values: str) -> bytes:
    settings = "".join(f"{name}={shlex.quote(value)}\n" for name, value in values.items())
    # A function is read whole before it runs, so a cut session never runs half a script.
    return f"{_HEAD}{settings}main() {{\n{body}}}\nmain </dev/null\n".encode()
