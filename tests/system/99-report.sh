#!/bin/bash
# TIMEOUT: 180
# The report in a real browser: without network every chart is there, visible, and its text within it, light and dark, wide and narrow.
# A screenshot stays in target/report/. RESULTS: a directory of results to look at; without, three experiments are run.
# shellcheck source=tests/system/lib.sh
source "$(dirname "$0")/lib.sh"
browser=$(command -v chromium-headless-shell || command -v chromium || command -v chromium-browser || true)
[[ -n $browser ]] || skip "no Chromium here: apt install chromium-headless-shell, or chromium"
kept=${CARGO_TARGET_DIR:-$ROOT/target}/report
mkdir -p "$kept"

results=${RESULTS:-$SCRATCH/out}
if [[ -z ${RESULTS:-} ]]; then
    "$HOTSHELF" bench run --small async-blocks cache-hits block --dir "$SCRATCH" --out "$results" >/dev/null || fail "run"
fi
"$HOTSHELF" bench report "$results" -o "$SCRATCH/report.html" >/dev/null || fail "report"
cp "$SCRATCH/report.html" "$kept/"

# The page itself has no script: what looks at it is put into a copy.
python3 - "$SCRATCH/report.html" "$SCRATCH/looked.html" <<'PY'
import sys
look = """<script>
addEventListener("load", () => {
    const wrong = [], charts = [...document.querySelectorAll("svg.chart")];
    const wide = document.documentElement.scrollWidth;
    if (wide > innerWidth) wrong.push(`the page is ${wide} wide in ${innerWidth}`);
    for (const chart of charts) {
        const box = chart.getBoundingClientRect(), name = chart.querySelector("title").textContent;
        if (box.width < 100 || box.height < 40 || !chart.checkVisibility()) wrong.push(`${name} is not visible`);
        if (!chart.getAttribute("aria-label")) wrong.push(`${name} has no words`);
        for (const text of chart.querySelectorAll("text")) {
            const at = text.getBoundingClientRect();
            if (at.left < box.left - 2 || at.right > box.right + 2 || at.top < box.top - 2 || at.bottom > box.bottom + 2)
                wrong.push(`${name}: "${text.textContent}" is outside`);
        }
        const shown = getComputedStyle(chart.querySelector("text")).fill, below = getComputedStyle(document.body).backgroundColor;
        if (shown === below) wrong.push(`${name}: text as its ground, ${shown}`);
    }
    document.body.dataset.looked = `charts=${charts.length} wrong=${wrong.length} ${wrong.join("; ")}`;
});
</script>"""
page = open(sys.argv[1]).read()
open(sys.argv[2], "w").write(page.replace("</body>", look + "</body>"))
PY
chrome() {
    timeout 60 "$browser" --headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --hide-scrollbars \
        --user-data-dir="$SCRATCH/profile" --host-resolver-rules='MAP * ~NOTFOUND' "$@" 2>"$SCRATCH/browser.log"
}
wanted=$(grep -o '<svg class="chart"' "$SCRATCH/report.html" | wc -l)
for how in "1200,900" "420,900" "1200,900 --blink-settings=preferredColorScheme=0"; do
    read -ra flags <<<"--window-size=$how"
    looked=$(chrome "${flags[@]}" --virtual-time-budget=4000 --dump-dom "file://$SCRATCH/looked.html" | grep -o 'data-looked="[^"]*"') ||
        fail "the browser shows nothing: $(tail -3 "$SCRATCH/browser.log")"
    [[ $looked == "data-looked=\"charts=$wanted wrong=0 \"" ]] || fail "$how: $looked, of $wanted charts"
done
chrome --window-size=1200,6000 --screenshot="$kept/report.png" "file://$SCRATCH/report.html" || fail "no screenshot"
(($(stat -c %s "$kept/report.png") > 20000)) || fail "the screenshot is empty"
echo "NOTE: $wanted charts looked at, in light and dark, wide and narrow; target/report/report.png is kept"
