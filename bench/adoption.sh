#!/bin/bash
# Directories that already hold FILES files (1000000): time until the mount answers, memory, idle CPU.
# shellcheck source=bench/lib.sh
source "$(dirname "$0")/lib.sh"
need python3
files=${FILES:-1000000}

python3 - "$SSD" "$HDD" "$files" <<'PY'
import os, sys
ssd, hdd, files = sys.argv[1], sys.argv[2], int(sys.argv[3])
for n in range(files):
    root = ssd if n % 2 else hdd
    if n % 1000 < 2:
        os.makedirs(f"{root}/d{n // 1000}", exist_ok=True)
    os.close(os.open(f"{root}/d{n // 1000}/a-file-with-a-name-{n}", os.O_CREAT | os.O_WRONLY, 0o644))
PY
begin=$(now)
"$HOTSHELF" mount --ssd "$SSD" --hdd "$HDD" "$MNT"
ls "$MNT" >/dev/null
cat "$MNT/d0/a-file-with-a-name-0"
usable=$(awk "BEGIN { printf \"%.3f\", $(now) - $begin }")
pid=$("$HOTSHELF" status --json "$MNT" | sed -n 's/^ *"pid": \([0-9]*\),*/\1/p')
empty=$(awk '/VmRSS/ { print $2 }' "/proc/$pid/status")
for ((n = 0; n < 1200; n++)); do
    "$HOTSHELF" status --json "$MNT" | grep -q '"scan_done": true' && break
    sleep 0.1
done
scanned=$(awk "BEGIN { printf \"%.1f\", $(now) - $begin }")
find "$MNT" >/dev/null
sleep 1
rss=$(awk '/VmRSS/ { print $2 }' "/proc/$pid/status")
known=$(find "$MNT" -type f | wc -l)
ticks() { awk '{ print $14 + $15 }' "/proc/$pid/stat"; }
before=$(ticks)
sleep 20
idle=$(awk "BEGIN { printf \"%.2f\", ($(ticks) - $before) / 20 }")
echo "  $known files: usable after $usable s, scanned after $scanned s; $((rss / 1024)) MiB resident" \
    "($(awk "BEGIN { printf \"%.0f\", $rss * 1024 / $known }") bytes a file; $((empty / 1024)) MiB at the start); idle CPU $idle %"
note adoption "files=$known" "usable_s=$usable" "rss_kib=$rss" "idle_percent=$idle"
