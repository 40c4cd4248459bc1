#!/bin/sh
# Makes the image's root: the programs, the libraries that the loader finds for them, and nothing else.
set -eu
root=$1
programs="/usr/bin/trunkline /usr/bin/trunkline-controller /usr/bin/trunkline-cni /usr/sbin/nft"

# The plugin is static: ldd has nothing to say of it, and fails.
libraries=$(for program in $programs; do ldd "$program" || true; done | grep -o '/[^ ]*' | sort -u)
for file in $programs $libraries; do
    mkdir -p "$root$(dirname "$file")"
    cp -L "$file" "$root$file"
done
mkdir -p "$root/tmp" "$root/run/trunkline" "$root/var/lib/trunkline" "$root/etc"
printf 'root:x:0:0:root:/:/none\nnonroot:x:65532:65532:nonroot:/:/none\n' >"$root/etc/passwd"
