# The first process of a namespaces node: makes the node's view of the machine, starts its SSH server, waits for its end.
#
# Runs as PID 1 of new mount, UTS, IPC and PID namespaces. Its words come in the environment:
#   disk         directory with what outlives a boot, upper/ work/ own/, and seed.tar with the node's own files
#   hidden       directories that the node must not see, one a line
#   name user address port uuid
#   personalise  'first', 'again' or empty: what cloud-init would do on this boot
#   nopasswd     'NOPASSWD:', or empty where the template's sudo asks for a password
#   dropped      capabilities that nothing in the node may have
#   sshd         the SSH server to start, or empty
# stdin is the lifeline: when the lab's end of it closes, this node ends. "ready" on stdout says that the node stands.
set -eu
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
umask 022
exec 3<&0 </dev/null

# --- the disk: this machine's root directory, copied on write ------------------------------------------------------
cd "$disk"
exec 4<seed.tar
mkdir -p upper work root own
# Relative paths, because ':' and ',' in a path have a meaning in these options.
mount -t overlay overlay -o lowerdir=/,upperdir=upper,workdir=work root
root=$disk/root

# An overlay shows only the file system it lies on; programs that live on another one are bound beside it.
while read -r _ _ _ _ place _; do
    case $place in
    /usr | /usr/* | /opt | /opt/* | /nix/* | /bin | /sbin | /lib | /lib32 | /lib64)
        [ ! -d "$root$place" ] || mount --bind -o ro "$place" "$root$place" ;;
    esac
done </proc/self/mountinfo

# What people keep files in is the node's own, and starts empty.
for place in home root tmp var/tmp srv mnt media; do
    real=$(readlink -f "/$place") || continue
    [ -d "$root$real" ] || continue
    mkdir -p "own/$place"
    mount --bind "own/$place" "$root$real"
done
chmod 0700 own/root
chmod 1777 own/tmp own/var/tmp
printf '%s\n' "$hidden" | while read -r place; do
    [ -z "$place" ] || [ ! -d "$root$place" ] || mount -t tmpfs -o ro,size=4k,mode=0755 tmpfs "$root$place"
done

# --- /dev /run /proc /sys ------------------------------------------------------------------------------------------
mount -t tmpfs -o mode=0755,nosuid,size=64k tmpfs "$root/dev"
for device in null zero full random urandom tty; do
    : >"$root/dev/$device"
    mount --bind "/dev/$device" "$root/dev/$device"
done
mkdir "$root/dev/pts" "$root/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666,mode=0620,gid=5 devpts "$root/dev/pts"
mount -t tmpfs -o mode=1777,nosuid,nodev tmpfs "$root/dev/shm"
ln -s pts/ptmx "$root/dev/ptmx"
ln -s /proc/self/fd "$root/dev/fd"
for stream in 0:stdin 1:stdout 2:stderr; do
    ln -s "/proc/self/fd/${stream%%:*}" "$root/dev/${stream#*:}"
done
mount -t tmpfs -o mode=0755,nosuid,nodev tmpfs "$root/run"
mkdir "$root/run/lock" "$root/run/sshd"

printf '%s' "$name" >/proc/sys/kernel/hostname
mount -t proc -o nosuid,nodev,noexec proc "$root/proc"
# root in the node is root of the machine to the kernel's switches, so they are locked.
for place in sys sysrq-trigger irq bus fs; do
    [ ! -e "$root/proc/$place" ] || mount --bind -o ro "$root/proc/$place" "$root/proc/$place"
done

mount -t tmpfs -o mode=0755,nosuid,nodev,noexec,size=1m tmpfs "$root/sys"
mkdir -p "$root/sys/class/dmi/id" "$root/sys/class/net"
(umask 0377 && printf '%s\n' "$uuid" >"$root/sys/class/dmi/id/product_uuid")
for place in /sys/class/net/*; do
    real=$(readlink -f "$place") || continue
    [ -d "$real" ] && mkdir -p "$root$real" && mount --bind -o ro "$real" "$root$real" || continue
    ln -s "$(readlink "$place")" "$root$place"
done
if [ -d /sys/devices/system/cpu ]; then # the C library counts CPUs there
    mkdir -p "$root/sys/devices/system/cpu"
    mount --bind -o ro /sys/devices/system/cpu "$root/sys/devices/system/cpu"
fi

cd "$root"
pivot_root . .
umount -l .
cd /

# --- what cloud-init would do --------------------------------------------------------------------------------------
if [ "$personalise" = first ]; then
    # Identities and secrets that belong to the machine, not to this node.
    rm -rf /etc/muster /etc/ssh/ssh_host_* /etc/ssl/private/* /etc/letsencrypt /etc/wireguard \
        /etc/NetworkManager/system-connections /etc/krb5.keytab /var/lib/cloud
    # '*' is no password that could ever match, and unlike '!' does not lock the account against keys.
    [ ! -f /etc/shadow ] || sed -i 's/^\([^:]*\):[^:]*:/\1:*:/' /etc/shadow
    rm -f /etc/shadow- /etc/gshadow-
fi
if [ -n "$personalise" ]; then
    rm -f /etc/ssh/ssh_host_*
    if ! grep -q "^$user:" /etc/passwd; then
        shell=/bin/bash
        [ -x "$shell" ] || shell=/bin/sh
        if command -v useradd >/dev/null; then
            useradd -M -U -s "$shell" -d "/home/$user" "$user"
            usermod -p '*' "$user"
        else
            id=1000
            while grep -q "^[^:]*:[^:]*:$id:" /etc/passwd || grep -q "^[^:]*:[^:]*:$id:" /etc/group; do
                id=$((id + 1))
            done
            printf '%s\n' "$user:x:$id:$id::/home/$user:$shell" >>/etc/passwd
            printf '%s\n' "$user:x:$id:" >>/etc/group
            printf '%s\n' "$user:*:19000:0:99999:7:::" >>/etc/shadow
        fi
    fi
fi
tar -x -f - -C / <&4
exec 4<&-
if [ -n "$personalise" ]; then
    home=$(sed -n "s/^$user:[^:]*:[^:]*:[^:]*:[^:]*:\([^:]*\):.*/\1/p" /etc/passwd)
    group=$(id -gn "$user")
    [ -d "$home" ] || install -d -m 0700 -o "$user" -g "$group" "$home"
    [ -d "$home/.ssh" ] || install -d -m 0700 -o "$user" -g "$group" "$home/.ssh"
    keys=$home/.ssh/authorized_keys
    [ -f "$keys" ] || install -m 0600 -o "$user" -g "$group" /dev/null "$keys"
    while read -r key; do
        grep -qxF -e "$key" "$keys" || printf '%s\n' "$key" >>"$keys"
    done </run/cloud-init/authorized_keys
    if [ "$user" != root ] && [ -d /etc/sudoers.d ]; then
        (umask 0337 && printf '%s ALL=(ALL) %sALL\n' "$user" "$nopasswd" >/etc/sudoers.d/90-cloud-init-users)
    fi
fi
rm -f /run/cloud-init/authorized_keys

# --- run -----------------------------------------------------------------------------------------------------------
if [ -n "$sshd" ]; then
    setpriv --bounding-set "$dropped" \
        "$sshd" -D -e -f /etc/ssh/sshd_config -p "$port" -o "ListenAddress=$address" 3<&- >&2 &
fi
echo ready
exec >&2
{ read -r _ <&3 || :; } &
# Waiting, and not reading here, because only a waiting shell reaps what the node's processes leave behind.
wait "$!"
