"""Checks the page of `trainyard inspect --format html` in a browser, in light and dark, wide and narrow.

    python3 tests/python/check_timetable.py --trainyard target/release/trainyard [--browser chromium] [--pictures FOLDER]

The page must load nothing, have a row for each rank, a title for each task and no text that is cut off, and its colours must differ in
lightness. Needs Chromium and no Python packages. Without a browser it checks nothing and says so.
"""

import argparse
import html
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

MODEL = Path(__file__).resolve().parents[2] / "testdata/gpt2-bytes.onnx"
PAGES = {
    "1f1b": ["--mesh", "pp=4", "--global-batch", "16", "--microbatch", "2"],
    "interleaved": ["--mesh", "pp=2", "--global-batch", "8", "--microbatch", "2", "--schedule", "interleaved"],
    "zb-v": ["--mesh", "pp=4", "--global-batch", "16", "--microbatch", "1", "--schedule", "zb-v"],
}
BROWSERS = ["chromium", "chromium-browser", "google-chrome", "chrome"]

# Runs in a copy of the page, and leaves the faults in it as JSON.
MEASURE = """
const faults = [], fault = (text) => faults.push(text);
const all = (query) => [...document.querySelectorAll(query)];
if (document.documentElement.scrollWidth > innerWidth) fault(`the page is wider than the window: ${innerWidth} pixels`);
const tasks = all('rect.task');
for (const task of tasks) if (!task.querySelector('title')?.textContent) fault('a task has no title');
for (const text of all('text.on')) {
  const inner = text.getBBox(), outer = text.previousElementSibling.getBBox();
  if (inner.x < outer.x || inner.x + inner.width > outer.x + outer.width) fault(`a number is wider than its task: ${text.textContent}`);
}
for (const svg of all('svg')) for (const text of svg.querySelectorAll('text')) {
  const box = text.getBBox();
  if (box.x < 0 || box.x + box.width > svg.clientWidth || box.y < 0 || box.y + box.height > svg.clientHeight)
    fault(`a text is cut off: ${text.textContent}`);
}
const rows = (query) => all(query).map((text) => text.getBBox());
const marks = rows('.time text.axis');
marks.slice(1).forEach((box, i) => { if (marks[i].x + marks[i].width > box.x) fault('marks of the axis overlap'); });
for (const cell of all('td, th')) if (cell.scrollWidth > cell.clientWidth) fault(`a cell is cut off: ${cell.textContent}`);
const probe = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
const lightness = (colour) => {
  probe.fillStyle = colour; probe.fillRect(0, 0, 1, 1);
  const [r, g, b] = [...probe.getImageData(0, 0, 1, 1).data].map((c) => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
  const y = 0.2126 * r + 0.7152 * g + 0.0722 * b;
  return y > 0.008856 ? 116 * Math.cbrt(y) - 16 : 903.3 * y;
};
const style = getComputedStyle(document.documentElement);
const names = ['--forward', '--backward', '--weight', '--idle'];
const light = Object.fromEntries(names.map((name) => [name, lightness(style.getPropertyValue(name))]));
for (const one of names) for (const other of names)
  if (one < other && Math.abs(light[one] - light[other]) < 12) fault(`${one} and ${other} are equally light`);
for (const name of ['forward', 'backward', 'weight']) {
  const distance = Math.abs(light[`--${name}`] - lightness(style.getPropertyValue(`--on-${name}`)));
  if (distance < 40) fault(`numbers on ${name} are hard to read`);
}
const measured = document.createElement('pre');
measured.id = 'measured';
measured.textContent = JSON.stringify({
  faults, rows: all('g[data-rank]').length, tasks: tasks.length, labels: all('text.rank').length,
  dark: matchMedia('(prefers-color-scheme: dark)').matches,
});
document.body.append(measured);
"""


def chromium(browser, page, width, dark, *arguments):
    scheme = ["--blink-settings=preferredColorScheme=0"] if dark else ["--blink-settings=preferredColorScheme=1"]
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", f"--window-size={width},900", *scheme]
    run = subprocess.run([*command, *arguments, page.as_uri()], capture_output=True, text=True, timeout=120)
    if run.returncode != 0:
        sys.exit(f"{browser} failed: {run.stderr}")
    return run.stdout


def check(name, page, browser, folder, pictures):
    """Returns the faults of a page."""
    arguments = PAGES[name]
    ranks = int(arguments[1].removeprefix("pp="))
    faults = []
    # A page that loads nothing has no reference besides those to its own pattern.
    for reference in re.findall(r"""(?:src|href)=|@import|<script|https?:|url\((?!#)""", page):
        faults.append(f"the page refers to something else: {reference}")
    measured = folder / f"{name}-measured.html"
    measured.write_text(page.replace("</body>", f"<script>{MEASURE}</script></body>"))
    original = folder / f"{name}.html"
    original.write_text(page)
    for width in [1280, 600]:
        for dark in [False, True]:
            dom = chromium(browser, measured, width, dark, "--dump-dom")
            found = re.search(r'<pre id="measured">(.*?)</pre>', dom, re.DOTALL)
            result = json.loads(html.unescape(found.group(1))) if found else {"faults": ["it does not render"]}
            place = f"{width} pixels, {'dark' if dark else 'light'}"
            faults += [f"{place}: {fault}" for fault in result["faults"]]
            if found and [result["rows"], result["labels"]] != [ranks, ranks]:
                faults.append(f"{place}: {result['rows']} rows and {result['labels']} labels of {ranks} ranks")
            if found and result["tasks"] == 0:
                faults.append(f"{place}: no tasks")
            if found and result["dark"] != dark:
                faults.append(f"{place}: the browser did not take the colour scheme")
            if pictures:
                picture = pictures / f"{name}-{width}-{'dark' if dark else 'light'}.png"
                chromium(browser, original, width, dark, "--hide-scrollbars", f"--screenshot={picture}")
    return faults


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trainyard", required=True)
    parser.add_argument("--browser", default=next(filter(None, map(shutil.which, BROWSERS)), None))
    parser.add_argument("--pictures", type=Path, help="write pictures of the pages into this folder")
    arguments = parser.parse_args()
    if arguments.browser is None:
        print("not checked: there is no Chromium")
        return
    if arguments.pictures:
        arguments.pictures.mkdir(parents=True, exist_ok=True)
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        for name, flags in PAGES.items():
            command = [arguments.trainyard, "inspect", str(MODEL), *flags, "--format", "html"]
            page = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            faults = check(name, page, arguments.browser, Path(folder), arguments.pictures)
            print(f"{name}: {'; '.join(faults) if faults else 'as it should be'}")
            failed |= bool(faults)
    sys.exit(failed)


if __name__ == "__main__":
    main()
