#!/bin/bash
# TIMEOUT: 120
# Access control lists in an image: the same commands through its mount and on the file system of this machine say the same; who may
# what is decided by the kernel; import, export, an unmount and a check keep them.
# shellcheck source=tests/system/lib.sh
source "$(dirname "$0")/lib.sh"
need setfacl getfacl setpriv
root_only

image=$SCRATCH/image mnt=$SCRATCH/mnt host=$SCRATCH/host
mkdir -p "$mnt" "$host"
chmod 755 "$SCRATCH" "$host"
setfacl -m u:1:r "$host" 2>/dev/null || skip "no access control lists on $SCRATCH"
setfacl -b "$host"
fs() { "$HOTSHELF" fs "$@"; }
open_image() { fs mount "$image" "$mnt" --allow-other; }
close_image() { "$HOTSHELF" unmount "$mnt"; }
# both COMMAND...: in both places, as the user $as; what it says and its status are compared.
both() {
    local here said=()
    for here in "$host" "$mnt"; do
        said+=("$(cd "$here" && setpriv --reuid "$as" --regid "$as" --clear-groups bash -c "umask 027; $*" 2>&1; echo "status $?")")
    done
    [[ ${said[0]} == "${said[1]}" ]] || fail "as $as: $*: the host says '${said[0]}', the image '${said[1]}'"
}
# All of them, as text.
lists() { (cd "$1" && find . ! -type l -print0 | sort -z | xargs -0 getfacl -n 2>&1) || true; }

fs mkfs "$image" --size 64MiB >/dev/null
open_image
as=0
both 'chmod 755 .; mkdir d; chmod 700 d; echo text >f; chmod 640 f; getfacl -n d f'
both 'setfacl -m u:1001:rw,g:1002:r f; getfacl -n f; stat -c %A f; cat f'
both 'chmod 604 f; getfacl -n f; chmod 670 f; getfacl -n f'
both 'setfacl -m u:1001:rwx d; setfacl -d -m u:1003:rwx,g:1002:rx,m:rx,o::- d; getfacl -n d'
both 'touch d/new; mkdir d/sub; mkdir -m 700 d/close; ln -s x d/link; getfacl -n d/new d/sub d/close; stat -c %A d/link'
both 'mkfifo d/pipe; cp f d/copy; touch d/sub/deep; getfacl -n d/sub/deep d/pipe d/copy'
both 'setfacl -m u:5:rw d/link; setfacl -d -m u:5:rw f; setfacl -m m::8 f; setfacl -x u:77 f; getfacl -n f'
as=1001
both 'cat f; echo more >>f; ls d; touch d/mine; getfacl -n d/mine; setfacl -m u:5:r f; setfacl -m u:5:rw d/mine; getfacl -n d/mine'
as=1003
both 'cat f; ls d; cat d/new; setfacl -b d'
as=1002
both 'cat f; echo more >>f; ls d'
as=0
both 'setfacl -b f; getfacl -n f; setfacl -k d; touch d/plain; getfacl -n d/plain d; chmod 2770 d; chown 1001:1002 d'
as=1001
both 'setfacl -m u:9:rx d; stat -c %A d; getfacl -n d'
[[ $(lists "$host") == "$(lists "$mnt")" ]] || fail "not the same: $(diff <(lists "$host") <(lists "$mnt"))"
close_image
fs check "$image" >/dev/null || fail "check"
open_image
[[ $(lists "$host") == "$(lists "$mnt")" ]] || fail "not the same after a mount"
labels_are_reported "$mnt/d/copy"
# Export gives attributes to files and directories alone.
rm "$host/d/pipe" "$mnt/d/pipe"
close_image

# In and out.
fs export "$image" /d "$SCRATCH/out" >/dev/null || fail "export"
fs mkfs "$SCRATCH/second" --size 64MiB >/dev/null
fs import "$SCRATCH/second" "$host/d" / >/dev/null || fail "import"
fs export "$SCRATCH/second" /d "$SCRATCH/again" >/dev/null || fail "export"
for out in out again; do
    [[ $(lists "$host/d") == "$(lists "$SCRATCH/$out/d")" ]] || fail "$out: $(diff <(lists "$host/d") <(lists "$SCRATCH/$out/d"))"
done
