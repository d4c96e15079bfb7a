"""The shell scripts of a node's later life: look, refresh its lists and bundle, bring back a former identity (pure).

They are read, run and believed as those of `scripts.py` are, with its helpers.
"""

import base64
from collections.abc import Mapping

from onboard.scripts import Place, script

_LOOK = """\
here="$dir/current"
[ ! -f "$here/agent.yaml" ] || say agent "$(openssl base64 -A < "$here/agent.yaml" | cut -c1-131072)"
[ ! -f "$here/bundle.pem" ] || say bundle "$(openssl dgst -sha256 -r "$here/bundle.pem" | cut -c1-64)"
[ ! -f "$here/crl.pem" ] || say crl "$(openssl crl -in "$here/crl.pem" -noout -crlnumber 2>/dev/null | cut -d= -f2)"
[ ! -f "$here/pending" ] || say pending yes
say end look
"""

_REFRESH = """\
alone
trap '' HUP PIPE
from="$(readlink "$dir/current" 2>/dev/null)"
folder="$dir/generations/$generation"
swapped=""
fail() {
    trap '' INT TERM
    again=""
    if [ -n "$swapped" ]; then
        rm -f "$dir/.current.new"
        ln -s "$from" "$dir/.current.new" && mv -T "$dir/.current.new" "$dir/current" || again="; $dir/current stays"
        [ -z "$reload_command" ] || bounded 40 sh -c "$reload_command" </dev/null >/dev/null 2>&1 9<&-
    fi
    [ -n "$again" ] || wipe "$folder"
    rm -f "$dir/.current.new"
    say failed "$1: $(printf '%s' "${2:-}" | tr '\\n' ' ' | cut -c1-400)$again"
    exit 1
}
trap 'fail interrupted' INT TERM
[ -n "$from" ] && [ "$from" != "generations/$generation" ] && [ -s "$dir/$from/key.pem" ] \\
    || fail key "there is no identity in force"
# What a run that was killed has left; the key in it is a copy.
wipe "$folder"
mkdir "$folder" || fail write "$folder"
for name in key.pem chain.pem uuid; do
    [ ! -f "$dir/$from/$name" ] || cp -p "$dir/$from/$name" "$folder/$name" || fail write "$name"
done
put() {
    printf '%s' "$2" | openssl base64 -d -A > "$folder/$1.new" || fail write "$1"
    mv "$folder/$1.new" "$folder/$1" || fail write "$1"
}
@FILES@
printf '%s\\n' "$mark" > "$folder/ticket" && printf '%s' "$from" > "$folder/before" \\
    && : > "$folder/pending" || fail write "$folder"
if [ "$(id -u)" = 0 ]; then chown -R "$owner:$group" "$folder" || fail owner "chown $owner:$group"; fi
chmod 0750 "$folder" && chmod 0640 "$folder"/* && chmod 0600 "$folder/key.pem" || fail modes "chmod"
[ "$(openssl x509 -in "$folder/chain.pem" -noout -pubkey 2>/dev/null)" \\
    = "$(openssl pkey -in "$folder/key.pem" -pubout 2>/dev/null)" ] || fail match "certificate and key differ"
listed=""
[ ! -f "$folder/crl.pem" ] || listed="-crl_check -CRLfile $folder/crl.pem"
judged="$(openssl verify -x509_strict $listed -CAfile "$folder/bundle.pem" -untrusted "$folder/chain.pem" \\
    "$folder/chain.pem" 2>&1)" || fail chain "$judged"
if [ -n "$check_command" ]; then
    said="$(MUSTER_AGENT_CONFIG="$folder/agent.yaml" bounded 40 sh -c "$check_command" </dev/null 2>&1 9<&-)" \\
        || fail check_command "${said:-no word, status $?}"
fi
say step checked
sync "$folder"/* "$folder" "$dir/generations" 2>/dev/null || sync
rm -f "$dir/.current.new"
ln -s "generations/$generation" "$dir/.current.new" && swapped=yes && mv -T "$dir/.current.new" "$dir/current" \\
    || fail swap "$dir/current"
if [ "$(id -u)" = 0 ]; then chown -h "$owner:$group" "$dir/current" || fail owner "chown -h"; fi
sync "$dir" 2>/dev/null || sync
say step swapped
if [ -n "$reload_command" ]; then
    said="$(bounded 60 sh -c "$reload_command" </dev/null 2>&1 9<&-)" \\
        || fail reload_command "${said:-no word, status $?}"
    say step reloaded
fi
trap '' INT TERM
rm -f "$folder/pending" "$dir/$from/pending"
for old in "$dir"/generations/*; do
    case "generations/${old##*/}" in
        "generations/$generation" | "$from") ;;
        *) wipe "$old" ;;
    esac
done
say end refresh
"""

_RESTORE = """\
alone
trap '' HUP PIPE INT TERM
fail() {
    say failed "$1: $(printf '%s' "${2:-}" | tr '\\n' ' ' | cut -c1-400)"
    exit 1
}
shown() { openssl x509 -in "$1/chain.pem" -noout -fingerprint -sha256 2>/dev/null \\
    | cut -d= -f2 | tr -d : | tr A-F a-f; }
found=""
for old in "$dir"/generations/*; do
    [ "$(shown "$old")" != "$former" ] || [ ! -s "$old/key.pem" ] || found="${old##*/}"
done
[ -n "$found" ] || fail former "no generation has certificate $former any more"
if [ "$(readlink "$dir/current" 2>/dev/null)" != "generations/$found" ]; then
    rm -f "$dir/.current.new"
    ln -s "generations/$found" "$dir/.current.new" && mv -T "$dir/.current.new" "$dir/current" \\
        || fail swap "$dir/current"
    if [ "$(id -u)" = 0 ]; then chown -h "$owner:$group" "$dir/current" || fail owner "chown -h"; fi
    sync "$dir" 2>/dev/null || sync
    say step swapped
fi
# Also where the swap was done before: the run that did it may have been killed right after.
if [ -n "$reload_command" ]; then
    said="$(bounded 60 sh -c "$reload_command" </dev/null 2>&1 9<&-)" \\
        || say reload "${said:-no word, status $?}"
fi
for old in "$dir"/generations/*; do
    [ "$(shown "$old")" != "$failed" ] || wipe "$old"
done
say end restore
"""


def look(place: Place) -> bytes:
    """Reads what of the identity in force may have aged: lists, bundle, agent.yaml."""
    return script(_LOOK, dir=place.dir)


def refresh(
    place: Place,
    *,
    generation: int,
    mark: str,
    files: Mapping[str, bytes],
    check_command: str | None,
    reload_command: str | None,
) -> bytes:
    """Makes a generation of the identity in force and these files; its key is copied there, on the node.

    mark: hex; tells what a killed run of the same refresh has left.
    """
    puts = "\n".join(f"put {name} {base64.b64encode(content).decode()}" for name, content in files.items())
    return script(
        _REFRESH.replace("@FILES@", puts),
        dir=place.dir,
        owner=place.owner,
        group=place.group,
        generation=str(generation),
        mark=mark,
        check_command=check_command or "",
        reload_command=reload_command or "",
    )


def restore(place: Place, *, former: str, failed: str, reload_command: str | None) -> bytes:
    """Puts the generation of the certificate `former` in force again and wipes that of `failed`.

    Both are SHA-256 fingerprints (hex), so that it may be done again after it was ended anywhere.
    """
    return script(
        _RESTORE,
        dir=place.dir,
        owner=place.owner,
        group=place.group,
        former=former,
        failed=failed,
        reload_command=reload_command or "",
    )
