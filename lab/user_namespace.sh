# Runs a command in a node's directory: makes the node's view of the machine in namespaces of its own, then enters it.
#
# Arguments: disk, hostname, file that is seen as product_uuid, directory of the node's own programs (or empty) and where
# it is seen; then one a line: directories of this machine that are seen read-only, those in them that are empty
# there, network devices as pairs of link and directory; then the command.
set -eu
disk=$1 name=$2 uuid=$3 before=$4 before_at=$5 programs=$6 masked=$7 devices=$8
shift 8

# A mount that came from outside keeps the flags that it had there, so each is told again: mount_namespaces(7).
lock() {
    while read -r _ _ _ _ point options _; do
        case $point in
        "$1" | "$1"/*) mount -o "remount,bind,ro${options#r?}" "$point" ;;
        esac
    done </proc/self/mountinfo
}
each() { # each LIST COMMAND: the command, with each line of the list
    printf '%s\n' "$1" | while read -r line; do
        [ -z "$line" ] || "$2" "$line"
    done
}
show() {
    mkdir -p "$disk$1"
    mount --rbind "$1" "$disk$1"
    lock "$disk$1"
}
mask() { mount -t tmpfs -o ro,size=4k,mode=0755 tmpfs "$disk$1"; }

hostname "$name"
mount --bind "$disk" "$disk"
each "$programs" show
if [ -n "$before" ]; then
    mount --bind "$before" "$disk$before_at"
    lock "$disk$before_at"
fi
each "$masked" mask

mount -t tmpfs -o mode=0755,nosuid,size=64k tmpfs "$disk/dev"
for device in null zero full random urandom tty; do
    : >"$disk/dev/$device"
    mount --bind "/dev/$device" "$disk/dev/$device"
done
mkdir "$disk/dev/pts" "$disk/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666,mode=0620 devpts "$disk/dev/pts"
mount -t tmpfs -o mode=1777,nosuid,nodev tmpfs "$disk/dev/shm"
ln -s pts/ptmx "$disk/dev/ptmx"
ln -s /proc/self/fd "$disk/dev/fd"
for stream in 0:stdin 1:stdout 2:stderr; do
    ln -s "/proc/self/fd/${stream%%:*}" "$disk/dev/${stream#*:}"
done
mount -t tmpfs -o mode=1777,nosuid,nodev tmpfs "$disk/tmp"
mount -t tmpfs -o mode=0755,nosuid,nodev,noexec,size=1m tmpfs "$disk/sys"
mkdir -p "$disk/sys/class/dmi/id" "$disk/sys/class/net"
: >"$disk/sys/class/dmi/id/product_uuid"
mount --bind "$uuid" "$disk/sys/class/dmi/id/product_uuid"
lock "$disk/sys/class/dmi/id/product_uuid"
printf '%s\n' "$devices" | while read -r link && read -r real; do
    mkdir -p "$disk$real"
    mount --rbind "$real" "$disk$real"
    lock "$disk$real"
    ln -s "$real" "$disk$link"
done
mount -t proc -o nosuid,nodev,noexec proc "$disk/proc"

cd "$disk"
pivot_root . .
umount -l .
cd /root
# The shell stays as PID 1, for a command that were it would take no signal that it does not handle.
exec setpriv --bounding-set=-all --inh-caps=-all --no-new-privs /bin/sh -c '"$@"; exit "$?"' sh "$@"
