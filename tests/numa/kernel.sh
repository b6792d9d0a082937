#!/usr/bin/env bash
# kernel.sh FOLDER: fetches the distribution's kernel through apt and makes of it what QEMU starts: `vmlinux` (unpacked here,
# because that is slow in an emulated machine) and `initrd` (busybox, first.sh and a few modules). The file `complete`
# comes last.
set -euo pipefail

folder=$1
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
scratch=$folder/scratch
mkdir -p "$scratch/deb" "$scratch/files" "$scratch/initrd"/{bin,modules,proc,sys,dev,lower,layer,new}

# The package that the distribution's name for its kernel stands for, and that of the modules where they are apart.
packages() {
    local meta
    for meta in linux-image-amd64 linux-image-generic; do
        apt-cache depends "$meta" 2> /dev/null | sed -n 's/^ *Depends: \(linux-image-[0-9].*\)$/\1/p' | head -n 1 |
            while read -r image; do
                echo "$image"
                apt-cache depends "$image" 2> /dev/null | sed -n 's/^ *Depends: \(linux-modules-[0-9].*\)$/\1/p'
            done
    done
}
download() {
    local found
    mapfile -t found < <(packages)
    [ "${#found[@]}" -gt 0 ] || return 1
    echo "fetching ${found[*]}" >&2
    # apt compares what comes with the signed list of the distribution.
    (cd "$scratch/deb" && apt-get -o APT::Sandbox::User=root -q download "${found[@]}" > "$scratch/log" 2>&1)
}
if ! download; then
    apt-get -q update > /dev/null 2>&1 || true
    download || {
        cat "$scratch/log" >&2 || true
        echo "kernel.sh: apt gives no kernel" >&2
        exit 1
    }
fi
for package in "$scratch"/deb/*.deb; do
    dpkg-deb --fsys-tarfile "$package" | tar -x -C "$scratch/files"
done

# A bzImage holds the kernel packed, and behind it its length in four bytes. The header says where.
image=$(find "$scratch/files/boot" -name 'vmlinuz-*' | head -n 1)
field() { od -An -t "u$2" -j "$1" -N "$2" "$image" | tr -d ' '; }
start=$((($(field 497 1) + 1) * 512 + $(field 584 4)))
length=$(($(field 588 4) - 4))
tail -c "+$((start + 1))" "$image" | head -c "$length" > "$scratch/packed" || true
case "$(od -An -tx1 -N4 "$scratch/packed" | tr -d ' ')" in
fd377a58) xz -dc "$scratch/packed" > "$folder/vmlinux" ;;
28b52ffd) zstd -dcq "$scratch/packed" > "$folder/vmlinux" ;;
02214c18) lz4 -dcq "$scratch/packed" > "$folder/vmlinux" ;;
*) cp "$image" "$folder/vmlinux" ;; # QEMU starts the image, too.
esac

# Modules, each after those that it needs; what is not there is built in.
: > "$scratch/initrd/modules/order"
add() {
    local name=${1//-/_} file needed
    ! grep -qx "$name" "$scratch/initrd/modules/order" || return 0
    file=$(find "$scratch/files" -name "$name.ko*" -o -name "${name//_/-}.ko*" | head -n 1)
    [ -n "$file" ] || return 0
    local module=$scratch/initrd/modules/$name.ko
    case "$file" in
    *.xz) xz -dc "$file" > "$module" ;;
    *.zst) zstd -dcq "$file" > "$module" ;;
    *) cp "$file" "$module" ;;
    esac
    for needed in $(tr '\0' '\n' < "$module" | sed -n 's/^depends=//p' | tr , ' '); do add "$needed"; done
    echo "$name" >> "$scratch/initrd/modules/order"
}
for module in virtio_pci 9pnet_virtio 9p overlay; do add "$module"; done

cp "$(command -v busybox)" "$scratch/initrd/bin/busybox"
cp "$here/first.sh" "$scratch/initrd/init"
chmod 755 "$scratch/initrd/init"
(cd "$scratch/initrd" && find . | busybox cpio -o -H newc) > "$folder/initrd" 2> /dev/null
rm -rf "$scratch"
touch "$folder/complete"
