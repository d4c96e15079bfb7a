# Makes a machine's template of a fresh Debian; image.py runs it inside, as root, with /bin/sh -eu.

# Names and keys are each clone's own; cloud-init and systemd make them at the first boot.
rm -f /etc/ssh/ssh_host_* /etc/hostname /etc/resolv.conf /var/lib/dbus/machine-id
: >/etc/machine-id

# A VM reaches no archive, so it has none to ask.
rm -rf /etc/apt/sources.list /etc/apt/sources.list.d/* /etc/apt/apt.conf.d/99mmdebstrap /var/log/bootstrap.log
: >/etc/apt/sources.list

echo 'LABEL=root / ext4 errors=remount-ro 0 1' >/etc/fstab

cat >/etc/cloud/cloud.cfg.d/90_template.cfg <<'END'
datasource_list: [NoCloud, None]
apt: {preserve_sources_list: true}
grub_dpkg: {enabled: false}
locale: C.UTF-8
ssh_genkeytypes: [ed25519, ecdsa]
END

# The lab's addresses lie in 127.20.0.0/16. Here they are a network like any other, which a card carries:
# loopback keeps 127.0.0.0/16, and the kernel lets the rest of 127.0.0.0/8 through (ip-sysctl.rst, route_localnet).
cat >/etc/sysctl.d/90-lab.conf <<'END'
net.ipv4.conf.all.route_localnet = 1
net.ipv4.conf.default.route_localnet = 1
END
cat >/etc/systemd/system/lab-loopback.service <<'END'
[Unit]
Description=Loopback without the lab's addresses
DefaultDependencies=no
Before=network-pre.target cloud-init-local.service systemd-networkd.service
Wants=network-pre.target
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/sbin/sysctl -q -p /etc/sysctl.d/90-lab.conf
ExecStart=/sbin/ip address add 127.0.0.1/16 dev lo
ExecStart=/sbin/ip address delete 127.0.0.1/8 dev lo
[Install]
WantedBy=sysinit.target
END

# What the lab asks of a machine before it believes in it: `init=` this, on a disk that is thrown away.
cat >/usr/local/sbin/lab-proof <<'END'
#!/bin/sh
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
python3 -I -S -c 'import ssl' && openssl version && sudo -V >/dev/null && sshd -? 2>&1 | grep -q OpenSSH &&
    command -v cloud-init qemu-ga && echo 'lab-proof: this machine stands'
while :; do sleep 60; done
END
chmod 755 /usr/local/sbin/lab-proof

systemctl --quiet enable lab-loopback.service systemd-networkd.service
# Debian's unit has no [Install] section.
ln -sf /lib/systemd/system/qemu-guest-agent.service /etc/systemd/system/multi-user.target.wants/
for unit in apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer e2scrub_reap.service \
    fstrim.timer systemd-networkd-wait-online.service; do
    ln -sf /dev/null "/etc/systemd/system/$unit"
done
