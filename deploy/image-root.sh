#!/bin/sh
# Creates the image's root: the programs, their shared libraries, and nothing else.
#   image-root.sh ROOT [FOLDER OF OUR PROGRAMS]
set -eu
root=$1
ours=${2:-/usr/bin}

mkdir -p "$root/usr/bin" "$root/usr/sbin" "$root/usr/lib/cni" "$root/tmp" "$root/run/trunkline" "$root/var/lib/trunkline" "$root/etc"
for program in trunkline trunkline-controller trunkline-cni; do
    cp -L "$ours/$program" "$root/usr/bin/"
done
cp -L /usr/sbin/nft "$root/usr/sbin/"
# Copied to nodes that have none, so they are not run here and need no libraries.
cp -L /usr/lib/cni/loopback /usr/lib/cni/portmap "$root/usr/lib/cni/"

# The plugin is static, so ldd fails for it.
libraries=$(for program in "$root"/usr/bin/* "$root"/usr/sbin/*; do ldd "$program" || true; done | grep -o '/[^ ]*' | sort -u)
for file in $libraries; do
    mkdir -p "$root$(dirname "$file")"
    cp -L "$file" "$root$file"
done
printf 'root:x:0:0:root:/:/none\nnonroot:x:65532:65532:nonroot:/:/none\n' >"$root/etc/passwd"
