#!/bin/bash
# The Python package as a person installs it: built as a wheel, installed in a new environment, on the library of this build.
# TIMEOUT: 120
# shellcheck source=tests/system/lib.sh
source "$(dirname "$0")/lib.sh"
need python3
library=$(dirname "$HOTSHELF")/libhotshelf.so
[[ -f $library ]] || fail "libhotshelf is not built: make build"
export HOTSHELF_LIBRARY=$library PYTHONDONTWRITEBYTECODE=1

# From the checkout, with the standard library alone.
(cd "$ROOT/python" && PYTHONPATH=. python3 -m unittest discover -s tests) >out 2>&1 || fail "from the checkout: $(tail -n 40 out)"
grep -q '^Ran [1-9]' out || fail "no test ran: $(cat out)"

# What README shows works as it stands there.
# shellcheck disable=SC2016 # backquotes of Markdown
sed -n '/^```python/,/^```/p' "$ROOT/python/README.md" | sed '/^```/d' >readme.py
head -c 2M /dev/urandom >data.bin
sed -i "s|/slow/data.bin|$SCRATCH/data.bin|" readme.py
printf '[cache]\nmemory = "8MiB"\nruntime_dir = "%s"\n' "$SCRATCH" >cache.toml
HOTSHELF_CONFIG=$SCRATCH/cache.toml PYTHONPATH=$ROOT/python python3 readme.py >out 2>&1 || fail "README: $(cat out)"
[[ $(dd if=data.bin bs=1 skip=10 count=3 status=none) == new ]] || fail "README: what was written is not there"

# Forked workers continue to read; each is a separate process of the cache.
cat >workers.py <<'EOF'
import multiprocessing, os, sys
import hotshelf
file = hotshelf.File("data.bin")
whole = file.pread(2 << 20, 0)
def part(number):
    return file.pread(4096, number * 4096) == whole[number * 4096:(number + 1) * 4096]
with multiprocessing.get_context("fork").Pool(4) as pool:
    sys.exit(0 if all(pool.map(part, range(512))) else 1)
EOF
HOTSHELF_CONFIG=$SCRATCH/cache.toml PYTHONPATH=$ROOT/python timeout 60 python3 workers.py >out 2>&1 || fail "forked workers: $(cat out)"

# As a wheel, if the tools to make one are installed; this test does not fetch them.
if python3 -c 'import setuptools, wheel, venv' 2>/dev/null && cp -r "$ROOT/python" source &&
    python3 -m pip --quiet --disable-pip-version-check wheel --no-deps --no-build-isolation --no-index -w dist source >pip.log 2>&1; then
    python3 -m venv env
    env/bin/python -m pip --quiet --disable-pip-version-check install --no-index dist/hotshelf-*-py3-none-any.whl >pip.log 2>&1 ||
        fail "pip: $(tail -n 5 pip.log)"
    [[ $(env/bin/python -c 'import hotshelf; print(hotshelf.version() == hotshelf.__version__)') == True ]] ||
        fail "the installed package does not work"
else
    echo "no wheel is built here: $(tail -n 1 pip.log 2>/dev/null || echo 'no setuptools, wheel or venv')"
fi
HOTSHELF_LIBRARY=$SCRATCH/nowhere.so PYTHONPATH=$ROOT/python python3 -c 'import hotshelf' >out 2>&1 && fail "without the library"
grep -q 'install libhotshelf, or say where it is with HOTSHELF_LIBRARY' out || fail "does not say what to do: $(cat out)"
