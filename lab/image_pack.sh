# Makes a bootable disk of an unpacked Debian without mounting anything; image.py runs it in the folder where
# root.tar lies, with /bin/sh -eu; $1 is the file system's size in MiB.

mkdir root
# Device nodes are the kernel's to make.
tar -C root --numeric-owner --exclude='./dev/*' -xpf root.tar
rm root.tar
cp root/boot/vmlinuz-* kernel
cp root/boot/initrd.img-* initrd
truncate -s "$(($1 + 1))M" disk.raw
mke2fs -q -t ext4 -L root -E offset=1048576 -d root disk.raw "${1}M"
rm -rf root
