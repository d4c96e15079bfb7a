"""The shell scripts that run on the node, each read by `sh -s` from stdin: three to enrol it, one to end (pure).

They need a POSIX shell, openssl and coreutils, nothing of ours. Each prints `key=value` lines; what they
print is believed only as far as `facts.py` checks it. A script runs as root where the login user is root or
may become it without a password, else as the login user.
"""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass

_HEAD = """\
set -u
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
LC_ALL=C
export PATH LC_ALL
umask 077
# What the shell does itself takes no process; a node may be small, and many may be one machine's.
first() { line=""; { read -r line < "$1"; } 2>/dev/null || :; }
say() { printf '%s=%s\\n' "$1" "$2"; }
keyhash() { openssl pkey -in "$1" -pubout -outform DER 2>/dev/null | openssl dgst -sha256 -r | cut -c1-64; }
wipe() {
    if [ -L "$1" ]; then rm -f "$1"; return; fi
    if command -v shred >/dev/null 2>&1; then
        for secret in "$1"/key.pem "$1"/key.new; do
            if [ -f "$secret" ] && [ ! -L "$secret" ]; then shred -u "$secret" 2>/dev/null; fi
        done
    fi
    rm -rf "$1"
}
# A cut session leaves a script at work here; the next one waits for its end. Status 75: nothing was done.
alone() {
    if [ -L "$dir/generations" ]; then
        echo "$dir/generations is a symbolic link, which is nothing of ours" >&2
        exit 75
    fi
    command -v flock >/dev/null 2>&1 || return 0
    { exec 9<"$dir" && flock -w 30 9; } || { echo "another run is at work in $dir" >&2; exit 75; }
}
bounded() {
    seconds="$1"
    shift
    if command -v timeout >/dev/null 2>&1; then timeout -k 5 "$seconds" "$@"; else "$@"; fi
}
"""

_FACTS = """\
uid="$(id -u)"
say uid "$uid"
say clock "$(date +%s)"
say hostname "$(uname -n)"
first /etc/machine-id
say machine_id "$line"
file=/sys/class/dmi/id/product_uuid
first $file
uuid="$line"
[ -n "$uuid" ] || [ "$uid" = 0 ] || uuid="$(sudo -n "$(command -v cat)" $file </dev/null 2>/dev/null)"
case "$uuid" in *[A-F]*) uuid="$(printf '%s' "$uuid" | tr A-F a-f)" ;; esac
say machine_uuid "$uuid"
[ "$uid" = 0 ] || say sudo "$(sudo -n true 2>&1 </dev/null | tail -n 1 | tr -cd ' -~' | cut -c1-160)"
say cat "$(command -v cat)"
say owner_uid "$(id -u "$owner" 2>/dev/null)"
entry="$(getent group "$group" 2>/dev/null)"
entry="${entry#*:*:}"
say group_gid "${entry%%:*}"
for tool in openssl python3 install ln mv rm mkdir chown chmod readlink; do
    command -v "$tool" >/dev/null 2>&1 || say missing "$tool"
done
version="$(openssl version 2>/dev/null)"
version="${version#* }"
say openssl "${version%% *}"
say current "$(readlink "$dir/current" 2>/dev/null)"
if [ -f "$dir/current/chain.pem" ]; then
    say current_sha256 "$(openssl x509 -in "$dir/current/chain.pem" -noout -fingerprint -sha256 2>/dev/null \
        | cut -d= -f2 | tr -d : | tr A-F a-f)"
    say current_key "$(keyhash "$dir/current/key.pem")"
fi
for generation in "$dir"/generations/*; do
    [ -d "$generation" ] || continue
    first "$generation/ticket"
    say generation "${generation##*/} $line"
done
for link in /sys/class/net/*; do
    [ -e "$link/address" ] || continue
    first "$link/address"
    say interface "${link##*/} $line"
done
say end facts
"""

_KEY = """\
set -e
folder="$dir/generations/$generation"
[ -d "$dir/generations" ] || mkdir -p "$dir/generations"
alone
made=""
trap '[ -z "$made" ] || rm -rf "$folder"' EXIT
first "$folder/ticket"
if [ -L "$folder" ] || [ ! -s "$folder/key.pem" ] || [ "$line" != "$ticket" ]; then
    if [ -e "$folder" ] || [ -L "$folder" ]; then wipe "$folder"; fi
    mkdir "$folder"
    made=yes
    openssl req -new -sha256 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout "$folder/key.new" \\
        -subj "/CN=$node"
    printf '%s\\n' "$ticket" > "$folder/ticket"
    mv "$folder/key.new" "$folder/key.pem"
    # What is certified next must not be lost with the power; the request counts once the end is told.
    sync "$folder/key.pem" "$folder/ticket" "$folder" "$dir/generations" 2>/dev/null || sync
else
    openssl req -new -sha256 -key "$folder/key.pem" -subj "/CN=$node"
fi
say end key
made=""
"""

_INSTALL = """\
folder="$dir/generations/$generation"
# A session that is cut must not end this half-way: it runs to its end, and the next run finds that it did.
trap '' HUP PIPE
[ -d "$dir/generations" ] || mkdir -p "$dir/generations"
alone
before="$(readlink "$dir/current" 2>/dev/null)"
in_force=""
if [ "$before" = "generations/$generation" ]; then
    in_force=yes
    first "$folder/before"
    before="$line"
fi
uid="$(id -u)"
eval "home=~$login"
keys="$home/.ssh/authorized_keys"
# What was there before lies beside it, so that putting it back is one rename, which a full disk allows too.
saved="$keys.muster-before"
sudoers=/etc/sudoers.d
back() {
    rm -f "$dir/.current.new"
    ln -s "$before" "$dir/.current.new" && mv -T "$dir/.current.new" "$dir/current"
}
fail() {
    trap - INT TERM
    rest=""
    again=""
    ours=""
    [ ! -f "$saved" ] || mv "$saved" "$keys" || rest="; $keys was not put back"
    for was in "$sudoers"/.*.muster-before; do
        [ -f "$was" ] || continue
        rules="${was##*/.}"
        mv "$was" "$sudoers/${rules%.muster-before}" || rest="$rest; the sudo rules were not put back"
    done
    if [ "$(readlink "$dir/current" 2>/dev/null)" = "generations/$generation" ]; then
        ours=yes
        if [ -n "$before" ] && [ "$before" != "generations/$generation" ]; then
            back || again=yes
        else
            rm -f "$dir/current"
        fi
    fi
    wipe "$folder"
    rm -f "$dir/.current.new" "$keys.new" "$sudoers/.muster.new"
    [ -z "$again" ] || back || rest="$rest; $dir/current was not put back"
    [ ! -e "$folder" ] || rest="$rest; $folder was not removed"
    if [ -n "$ours" ] && [ -n "$reload_command" ]; then
        bounded 40 sh -c "$reload_command" </dev/null >/dev/null 2>&1 9<&-
    fi
    say failed "$1: $(printf '%s' "${2:-}" | tr '\\n' ' ' | cut -c1-400)$rest"
    exit 1
}
trap 'fail interrupted' INT TERM
[ ! -L "$dir/.current.new" ] || rm -f "$dir/.current.new"
[ -s "$folder/key.pem" ] || fail key "the key made for this ticket is gone"
# A CMS signature is made by a key of its certificate alone, the first of the file. Comparing the two is the longer
# way (`openssl x509` takes 30 ms to start), for an openssl that was built without CMS.
match() {
    openssl cms -sign -binary -noattr -nocerts -signer "$folder/chain.pem" -inkey "$folder/key.pem" \\
        -outform DER -out /dev/null </dev/null 2>/dev/null && return
    public="$(openssl x509 -in "$folder/chain.pem" -noout -pubkey 2>/dev/null)"
    [ -n "$public" ] && [ "$public" = "$(openssl pkey -in "$folder/key.pem" -pubout 2>/dev/null)" ]
}
# What is in force may be read at any time: there a file is replaced whole.
put() {
    if [ -z "$in_force" ]; then
        printf '%s' "$2" > "$folder/$1" || fail write "$1"
        return
    fi
    printf '%s' "$2" > "$folder/$1.new" || fail write "$1"
    mv "$folder/$1.new" "$folder/$1" || fail write "$1"
}
@FILES@
if [ "$uid" = 0 ]; then
    chown -R "$owner:$group" "$dir" || fail owner "chown $owner:$group"
fi
chmod 0755 "$dir" && chmod u=rwX,g=rX,o= "$dir/generations" "$folder" "$folder"/[!k]* \\
    && chmod 0600 "$folder/key.pem" || fail modes "chmod"
match || fail match "certificate and key differ"
listed=""
[ ! -f "$folder/crl.pem" ] || listed="-crl_check -CRLfile $folder/crl.pem"
judged="$(openssl verify -x509_strict $listed -CAfile "$folder/bundle.pem" -untrusted "$folder/chain.pem" \\
    "$folder/chain.pem" 2>&1)" || fail chain "$judged"
if [ -n "$check_command" ]; then
    said="$(MUSTER_AGENT_CONFIG="$folder/agent.yaml" bounded 40 sh -c "$check_command" </dev/null 2>&1 9<&-)" \\
        || fail check_command "${said:-no word, status $?}"
fi
say step checked
printf '%s' "$before" > "$folder/before" || fail write before
sync "$folder"/* "$folder" "$dir/generations" 2>/dev/null || sync
ln -s "generations/$generation" "$dir/.current.new" && mv -T "$dir/.current.new" "$dir/current" \\
    || fail swap "$dir/current"
if [ "$uid" = 0 ]; then chown -h "$owner:$group" "$dir/current" || fail owner "chown -h"; fi
sync "$dir" 2>/dev/null || sync
say step swapped
if [ -n "$reload_command" ]; then
    said="$(bounded 60 sh -c "$reload_command" </dev/null 2>&1 9<&-)" \\
        || fail reload_command "${said:-no word, status $?}"
    say step reloaded
fi
if [ "$bootstrap" = remove ]; then
    if [ -f "$keys" ] && grep -qF "$holder_key" "$keys"; then
        # What a run that was ended here has saved is the older, and the truth.
        [ -f "$saved" ] || { cp -p "$keys" "$saved.new" && mv "$saved.new" "$saved"; } || fail bootstrap "$keys"
        cp -p "$keys" "$keys.new" && grep -F "$holder_key" "$saved" > "$keys.new" && mv "$keys.new" "$keys" \\
            || fail bootstrap "$keys"
        say bootstrap "$(grep -cvF "$holder_key" "$saved")"
    else
        say bootstrap none
    fi
    # Where root owns the identity, its upkeep needs root, and the sudo of the login user stays.
    if [ "$uid" = 0 ] && [ "$login" != root ] && [ "$owner" != root ]; then
        for rules in "$sudoers"/*; do
            [ -f "$rules" ] && grep -qE "^$login[[:space:]]" "$rules" || continue
            # sudo reads no file with a dot in its name (sudoers(5)).
            was="$sudoers/.${rules##*/}.muster-before"
            new="$sudoers/.muster.new"
            [ -f "$was" ] || { cp -p "$rules" "$was.new" && mv "$was.new" "$was"; } || fail sudo "$rules"
            # The login user keeps just what verifying and a next identity need: to read the machine's uuid,
            # and to act as the key's owner.
            grep -vE "^$login[[:space:]]" "$rules" > "$new"
            printf '%s ALL=(root) NOPASSWD: %s /sys/class/dmi/id/product_uuid\\n' "$login" "$(command -v cat)" \\
                >> "$new" || fail sudo "$rules"
            if [ "$owner" != "$login" ]; then
                printf '%s ALL=(%s) NOPASSWD: ALL\\n' "$login" "$owner" >> "$new" || fail sudo "$rules"
            fi
            if command -v visudo >/dev/null 2>&1; then
                said="$(visudo -cqf "$new" 2>&1)" || fail sudo "$rules would be no rules any more: $said"
            fi
            chown 0:0 "$new" && chmod 0440 "$new" && mv "$new" "$rules" || fail sudo "$rules"
            say sudo "$rules"
        done
    fi
fi
trap '' INT TERM
for was in "$saved" "$saved.new" "$sudoers"/.*.muster-before "$sudoers"/.*.muster-before.new; do
    [ ! -f "$was" ] || rm -f "$was"
done
for old in "$dir"/generations/*; do
    case "generations/${old##*/}" in
        "generations/$generation" | "$before") ;;
        *) wipe "$old" ;;
    esac
done
say end install
"""

_WIPE = """\
trap '' HUP PIPE
[ ! -d "$dir" ] || alone
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
        f'if [ "$(id -u)" = 0 ]; then exec sh -s; elif {may.format("")}; then exec sudo -n sh -s;'
        f' elif [ "$(id -un)" != {place.owner} ] && {may.format(f"-u {place.owner} ")};'
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
    puts = "\n".join(f"put {name} {shlex.quote(content.decode())}" for name, content in files.items())
    if "crl.pem" not in files:
        puts += '\n[ ! -f "$folder/crl.pem" ] || rm -f "$folder/crl.pem"'
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


def script(body: str, **values: str) -> bytes:
    """A script as the others here are: helpers, then settings, then `body` as one function."""
    return _script(body, **values)


def _script(body: str, **values: str) -> bytes:
    settings = "".join(f"{name}={shlex.quote(value)}\n" for name, value in values.items())
    # A function is read whole before it runs, so a cut session never runs half a script.
    return f"{_HEAD}{settings}main() {{\nsay begin script\n{body}}}\nmain </dev/null\n".encode()
